"""Configuration: one struct, clear errors, flags over file."""

import json

import pytest

from router.__main__ import main as router_main
from router.check_config import main as check_config
from router.cli import parse_arguments
from router.config import ConfigError, RouterConfig, load_config, normal_url, shown_config


def write(tmp_path, text, name="router.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_defaults():
    config = parse_arguments([])
    assert config == RouterConfig()
    assert (config.port, config.prometheus_port, config.policy) == (30000, 29000, "least_prefill")
    assert (config.pool, config.block_tokens) == ("default", 16)


def test_a_file_is_read_and_flags_override_it(tmp_path):
    path = write(
        tmp_path,
        'port = 1234\npool = "p"\n[dispatch]\nprefill_tokens_per_s = 10\nseed = 3\n'
        "[ingest]\nretire_after_s = 5\n",
    )
    config = parse_arguments(["--config", path, "--pool", "q", "--seed", "4"])
    assert (config.port, config.pool) == (1234, "q")
    assert (config.dispatch.seed, config.dispatch.prefill_tokens_per_s) == (4, 10.0)
    assert config.ingest.retire_after_s == 5


def test_json_does_as_well(tmp_path):
    path = write(tmp_path, '{"retries": {"max_retries": 0}}', "c.json")
    assert load_config(path, {}).retries.max_retries == 0


FLAGS = {
    "--host h": ("host", "h"),
    "--port 1": ("port", 1),
    "--prometheus-host h": ("prometheus_host", "h"),
    "--prometheus-port 0": ("prometheus_port", 0),
    "--worker-urls http://a:1 http://b:2": ("worker_urls", ("http://a:1", "http://b:2")),
    "--policy random": ("policy", "random"),
    "--work-price 2": ("work_price", 2.0),
    "--nats-url nats://x": ("nats_url", "nats://x"),
    "--pool p": ("pool", "p"),
    "--block-tokens 32": ("block_tokens", 32),
    "--secret-file f": ("secret_file", "f"),
    "--api-key k": ("api_key", "k"),
    "--api-key-file f": ("api_key_file", "f"),
    "--request-timeout-secs 5": ("request_timeout_s", 5.0),
    "--connect-timeout-secs 5": ("connect_timeout_s", 5.0),
    "--max-payload-size 5": ("max_payload_bytes", 5),
    "--tokenizer t": ("tokenizer", "t"),
    "--log-level debug": ("log_level", "debug"),
    "--access-log": ("access_log", True),
    "--drain-secs 0": ("drain_s", 0.0),
    "--ready-file f": ("ready_file", "f"),
}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_sets_its_field(flag):
    field, value = FLAGS[flag]
    assert getattr(parse_arguments(flag.split()), field) == value


ERRORS = {
    "[dispatch]\nprefill_tokens_per_s = 0": "dispatch.prefill_tokens_per_s: expected float > 0.0",
    "prot = 1": "unknown field prot",
    "[health]\nx = 1": "health: unknown field x",
    "port = 70000": "port: expected int <= 65535",
    'port = "a"': "port: expected int, got str",
    'policy = "best"': "policy: expected one of least_prefill, round_robin",
    'worker_urls = ["http://a", "b:1"]': "worker_urls[1]: expected http://host:port, got 'b:1'",
    "worker_urls = 5": "worker_urls: expected array, got int",
    'log_level = "loud"': "log_level: invalid enum value 'loud'",
    "port =": "Invalid value",
}


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_names_file_and_field(tmp_path, capsys, text):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_config(path, {})
    assert str(error.value).startswith(f"{path}: {ERRORS[text]}")
    assert "\n" not in str(error.value)
    assert check_config([path]) == 2
    assert router_main(["--config", path]) == 2
    assert ERRORS[text] in capsys.readouterr().err


def test_an_error_in_a_flag_names_the_command_line():
    with pytest.raises(ConfigError, match=r"^command line: port: expected int <= 65535"):
        parse_arguments(["--port", "70000"])


def test_a_missing_file_is_an_error(tmp_path, capsys):
    assert check_config([str(tmp_path / "none.toml")]) == 2
    assert "none.toml: No such file" in capsys.readouterr().err
    path = write(tmp_path, 'secret_file = "/nowhere/secret"')
    assert check_config([path]) == 2
    assert "/nowhere/secret: No such file" in capsys.readouterr().err
    assert router_main(["--tokenizer", str(tmp_path)]) == 2
    assert "tokenizer: no file" in capsys.readouterr().err


def test_check_config_prints_what_results_without_the_key(tmp_path, capsys):
    path = write(tmp_path, 'api_key = "hidden"\nport = 5\n')
    assert check_config([path]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["port"], shown["api_key"]) == (5, "***")
    assert load_config(write(tmp_path, json.dumps(shown), "s.json"), {}).port == 5
    assert b'"api_key": null' in shown_config(RouterConfig())


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("http://Host:1/", "http://host:1"),
        ("https://h/prefix/", "https://h/prefix"),
        (" http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_urls_are_compared_in_one_form(url, normal):
    assert normal_url(url) == normal


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://h:x", "http://h?q=1"])
def test_what_is_no_engine_url(url):
    with pytest.raises(ValueError, match=r"(?i)port"):
        normal_url(url)
