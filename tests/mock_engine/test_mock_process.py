import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from bench.mock_engine.__main__ import main
from bench.mock_engine.config import MockEngineConfig


def test_the_process_announces_itself_and_stops_on_sigterm(tmp_path):
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "bench.mock_engine", "--speed", "100"]
    options = ["--ready-file", str(ready), "--fault", '{"refuse": true}']
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            endpoints = json.loads(process.stdout.readline())
            assert json.loads(ready.read_text()) == endpoints
            assert set(endpoints) == {"url", "kv_events", "kv_replay"}
            with urllib.request.urlopen(endpoints["url"] + "/health", timeout=10) as response:
                assert response.status == 200
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


@pytest.mark.parametrize(
    "arguments",
    [["--speed", "0"], ["--port", "70000"], ["--tokenizer", "/nowhere"], ["--fault", "{"]],
)
def test_wrong_arguments_are_named(arguments, capsys):
    assert main(arguments) == 2
    assert "mock engine: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("profile", "x"),
        ("block_tokens", 0),
        ("capacity_tokens", 15),
        ("max_batched_tokens", 255),
        ("hash_seed", -1),
        ("hash_seed", 1 << 64),
    ],
)
def test_settings_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        MockEngineConfig(**{field: value})
