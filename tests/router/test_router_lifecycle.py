"""The process: starts without anything, says where it listens, stops in good order."""

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

from router_harness import STREAM_HEAD, Engine, chunk, connected, dead_url, request_bytes

ROOT = Path(__file__).resolve().parents[2]


class Process:
    def __init__(self, process, url):
        self.process = process
        self.url = url


@contextlib.asynccontextmanager
async def router_process(tmp_path, *flags):
    ready = tmp_path / "ready.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "router",
        *("--host", "127.0.0.1", "--port", "0", "--prometheus-port", "0"),
        *("--ready-file", str(ready), *flags),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(20):
            while not ready.exists():
                assert process.returncode is None, await process.stderr.read()
                await asyncio.sleep(0.02)
        yield Process(process, json.loads(ready.read_text())["url"])
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def get(url, target):
    async with connected(url) as connection:
        connection.writer.write(request_bytes("GET", target))
        return await connection.reply()


async def answers(url, target, status):
    for _ in range(200):
        if (await get(url, target)).status == status:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{target} never answers {status}")


async def test_a_stop_signal_lets_open_streams_finish(tmp_path):
    go = asyncio.Event()

    async def script(_seen, writer):
        writer.write(STREAM_HEAD + chunk(b"one"))
        await go.wait()
        writer.write(chunk(b"two") + b"0\r\n\r\n")

    engine = Engine(script)
    await engine.start()
    async with (
        router_process(tmp_path, "--worker-urls", engine.url) as router,
        connected(router.url) as connection,
    ):
        connection.writer.write(request_bytes("POST", "/v1/completions", b'{"prompt":"x"}'))
        await connection.reader.readuntil(b"\r\n\r\n")
        assert await connection.read_chunk() == b"one"
        router.process.send_signal(signal.SIGTERM)
        await answers(router.url, "/ready", 503)
        assert (await get(router.url, "/health")).status == 200
        go.set()
        assert await connection.read_chunk() == b"two"
        assert await connection.reader.readuntil(b"\r\n\r\n") == b"0\r\n\r\n"
        async with asyncio.timeout(5):
            assert await router.process.wait() == 0
    await engine.stop()


async def test_draining_ends_in_time_and_cuts_what_is_left(tmp_path):
    async def script(_seen, writer):
        writer.write(STREAM_HEAD + chunk(b"one"))
        await asyncio.Event().wait()

    engine = Engine(script)
    await engine.start()
    async with (
        router_process(tmp_path, "--worker-urls", engine.url, "--drain-secs", "0.2") as router,
        connected(router.url) as connection,
    ):
        connection.writer.write(request_bytes("POST", "/v1/completions", b'{"prompt":"x"}'))
        await connection.reader.readuntil(b"\r\n\r\n")
        router.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            assert await router.process.wait() == 0
        rest = await connection.reader.read()
        assert not rest.endswith(b"0\r\n\r\n")
    await engine.stop()


async def test_it_serves_without_the_bus_and_with_an_engine_down(tmp_path):
    engine = Engine()
    await engine.start()
    bus = dead_url().replace("http", "nats")
    flags = ["--worker-urls", dead_url(), engine.url, "--nats-url", bus]
    async with router_process(tmp_path, *flags) as router, connected(router.url) as connection:
        connection.writer.write(request_bytes("POST", "/v1/completions", b'{"prompt":"x"}'))
        assert (await connection.reply()).status == 200
        await answers(router.url, "/ready", 200)
        metrics = (await get(router.url, "/metrics")).body
        assert b"warmroute_router_nats_connected 0.0" in metrics
        assert b"warmroute_router_index_gaps_total 0.0" in metrics
    await engine.stop()
