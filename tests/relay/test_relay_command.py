import asyncio
import signal
import sys

import pytest
from relay_fakes import eventually

from indexer.relay.__main__ import main
from indexer.relay.config import ConfigError, EngineTarget, parse_config

URL = "http://10.0.0.1:8000"


def test_defaults():
    config = parse_config(["--engine-url", URL + "/", "http://10.0.0.2:8000"])
    assert [target.instance for target in config.engines] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert config.engines[0] == EngineTarget(URL, "10.0.0.1:8000")
    assert (config.pool, config.block_tokens, config.heartbeat_s) == ("default", 16, 1.0)
    assert (config.port, config.secret) == (0, "")


def test_everything_given(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    flags = (
        "--instance a --kv-events tcp://*:1 tcp://*:2 --kv-replay tcp://*:3 tcp://*:4 --pool p "
        f"--nats-url nats://n:1 --block-tokens 32 --heartbeat-s 0.5 --secret-file {secret} "
        "--port 9 --host h --log-level debug"
    )
    config = parse_config(["--engine-url", URL, *flags.split()])
    assert config.engines[0].kv_events == ("tcp://*:1", "tcp://*:2")
    assert config.engines[0].kv_replay == ("tcp://*:3", "tcp://*:4")
    assert (config.secret, config.block_tokens, config.heartbeat_s) == ("s3cret", 32, 0.5)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--block-tokens 0", "--block-tokens"),
        ("--block-tokens x", "--block-tokens"),
        ("--heartbeat-s 0.001", "--heartbeat-s"),
        ("--port 70000", "--port"),
        ("--log-level loud", "--log-level"),
        ("--instance a b", "--instance"),
        ("--kv-replay tcp://*:1", "--kv-replay"),
        ("--secret-file /does/not/exist", "--secret-file"),
        ("--engine-url ftp://x", "--engine-url"),
        ("--engine-url http://x:0", "--engine-url"),
        ("--engine-url http://x:1 http://x:1", "--instance"),
        ("--engine-url http://x:1 http://x:2 --kv-events tcp://*:1", "--kv-events"),
    ],
)
def test_bad_flags_are_named(flags, named, capsys):
    argv = ["--engine-url", URL, *flags.split()]
    with pytest.raises(ConfigError, match=f"^{named}: "):
        parse_config(argv)
    assert main(argv) == 2
    assert named in capsys.readouterr().err


def test_empty_secret_is_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("\n")
    with pytest.raises(ConfigError, match="--secret-file"):
        parse_config(["--engine-url", URL, "--secret-file", str(secret)])


def test_missing_engine_url_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert "--engine-url" in capsys.readouterr().err


async def test_process_announces_and_says_goodbye(engine, listener, nats_server):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "indexer.relay", "--engine-url", engine.url, "--nats-url", nats_server.url),
        *("--instance", "e1", "--heartbeat-s", "0.1", "--log-level", "warning"),
    )
    await eventually(lambda: listener.heartbeats)
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    await eventually(lambda: listener.heartbeats[-1].leaving)


async def test_stops_without_engine_or_nats(unused_tcp_port):
    nowhere = f"127.0.0.1:{unused_tcp_port}"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "indexer.relay", "--engine-url", f"http://{nowhere}"),
        *("--nats-url", f"nats://{nowhere}"),
        stderr=asyncio.subprocess.PIPE,
    )
    await process.stderr.readuntil(b"trying again")
    process.send_signal(signal.SIGTERM)
    _, log = await process.communicate()
    assert process.returncode == 0
    assert b"Traceback" not in log
