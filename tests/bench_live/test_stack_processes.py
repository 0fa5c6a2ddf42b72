import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.stack.fleet import Fleet, FleetConfig, engine_args, relay_args, router_args
from bench.stack.nats_server import NatsServer, find_nats_server
from bench.stack.process import Process, ProcessError
from bench.stack.scrape import metric_sum, process_cpu_s

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


async def no():
    return False


async def test_a_process_leaves_a_log_and_stops(tmp_path):
    process = Process("sleeper", SLEEPER, tmp_path)

    async def is_up():
        return "up" in process.log_path.read_text()

    await process.wait_until(is_up, "output")
    assert process.running
    process.freeze()
    await process.stop()
    assert not process.running
    await process.stop()


async def test_a_death_is_reported_with_the_log(tmp_path):
    process = Process("dier", [sys.executable, "-c", "raise SystemExit('no luck')"], tmp_path)
    with pytest.raises(ProcessError, match=r"(?s)dier: exited with status 1 before port.*no luck"):
        await process.wait_until(no, "port")


async def test_a_slow_start_is_reported(tmp_path):
    process = Process("sleeper", SLEEPER, tmp_path)
    with pytest.raises(ProcessError, match=r"no port within 0\.1 s"):
        await process.wait_until(no, "port", timeout_s=0.1)
    process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="uses Linux's parent-death signal")
def test_no_orphans(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from bench.stack.process import Process\n"
        f"child = Process('child', ['sleep', '60'], Path({str(tmp_path)!r}))\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    child_pid = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    end_s = time.monotonic() + 5
    while alive(child_pid) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not alive(child_pid)


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_cpu_time_of_a_process():
    assert process_cpu_s(os.getpid()) > 0
    assert process_cpu_s(2**30) is None


def test_metric_sum():
    text = '# TYPE a gauge\na{state="up",x="1"} 2\na{state="up",x="2"} 3\na{state="down"} 4\n'
    assert metric_sum(text, "a", state="up") == 5
    assert metric_sum(text, "a") == 9
    assert metric_sum(text, "b") == 0
    counter = '# TYPE vllm:n counter\nvllm:n_total{m="x"} 7\nvllm:n_created{m="x"} 1\n'
    assert metric_sum(counter, "vllm:n_total") == 7


@pytest.fixture
def needs_nats():
    try:
        find_nats_server()
    except FileNotFoundError as error:
        pytest.skip(str(error))


async def greeting(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await asyncio.wait_for(reader.readline(), 5)
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.usefixtures("needs_nats")
async def test_nats_comes_back_on_its_port(tmp_path):
    server = NatsServer(tmp_path)
    await server.start()
    try:
        url = server.url
        port = int(url.rsplit(":", 1)[1])
        assert (await greeting(port)).startswith(b"INFO ")
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            await greeting(port)
        await server.restart()
        assert server.url == url
        assert (await greeting(port)).startswith(b"INFO ")
        server.freeze()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(greeting(port), 0.2)
        server.thaw()
        assert (await greeting(port)).startswith(b"INFO ")
    finally:
        await server.stop()


def test_commands_of_the_fleet():
    config = FleetConfig(policy="least_prefill", router_args=("--log-level", "debug"))
    engine = engine_args(config, Path("f.ready"))
    assert engine[engine.index("--block-size") + 1] == "16"
    assert engine[engine.index("--ready-file") + 1] == "f.ready"
    relay = relay_args(config, ["http://a", "http://b"], "nats://n")
    assert relay[:5] == ["--engine-url", "http://a", "http://b", "--nats-url", "nats://n"]
    router = router_args(config, 1, 2, ["http://a"], "nats://n")
    assert "--worker-urls" not in router
    assert router[-2:] == ["--log-level", "debug"]
    alone = router_args(config, 1, 2, ["http://a"], None)
    assert alone[alone.index("--worker-urls") + 1] == "http://a"
    assert "--nats-url" not in alone


async def test_a_fleet_that_cannot_start_leaves_nothing_behind(tmp_path):
    config = FleetConfig(policy="x", engines=2, with_nats=False, engine_args=("--no-such-option",))
    fleet = Fleet(config, tmp_path)
    with pytest.raises(ProcessError, match=r"engine-0: exited with status 2"):
        async with fleet:
            pass
    assert fleet.engines == []
