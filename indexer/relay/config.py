"""The relay's configuration and its command line."""

import argparse
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Seconds = Annotated[float, msgspec.Meta(ge=0.05, le=60.0)]


class ConfigError(ValueError):
    """A setting that cannot be used; the text names it."""


class EngineTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine to follow."""

    url: Name  # HTTP base, for example http://10.0.0.7:8000
    instance: Name  # what the engine is called on the bus
    kv_events: tuple[Name, ...] = ()  # live endpoint of each rank; empty: ask the engine
    kv_replay: tuple[Name, ...] = ()  # replay endpoint of each rank

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


class RelayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a relay process is told."""

    engines: Annotated[tuple[EngineTarget, ...], msgspec.Meta(min_length=1)]
    nats_url: Name = "nats://127.0.0.1:4222"
    pool: Name = "default"
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 16
    heartbeat_s: Seconds = 1.0
    poll_s: Seconds = 1.0  # between looks at an engine's load
    secret: str = ""  # part of every block hash, the same in the whole deployment
    host: Name = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0  # of /metrics and /health; 0: none
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmroute relay",
        description="Follows engines' KV events and publishes what they hold over NATS.",
    )
    add = parser.add_argument
    add("--engine-url", nargs="+", required=True, metavar="URL", help="HTTP base of each engine")
    add("--instance", nargs="+", metavar="NAME", help="name of each engine (default: host:port)")
    add("--kv-events", nargs="+", metavar="EP", default=[], help="live endpoint of each rank")
    add("--kv-replay", nargs="+", metavar="EP", default=[], help="replay endpoint of each rank")
    add("--nats-url", default="nats://127.0.0.1:4222", metavar="URL")
    add("--pool", default="default", metavar="NAME")
    add("--block-tokens", default="16", metavar="N", help="tokens per block on the bus")
    add("--heartbeat-s", default="1.0", metavar="S", help="seconds between heartbeats")
    add("--poll-s", default="1.0", metavar="S", help="seconds between looks at the load")
    add("--secret-file", metavar="FILE", help="deployment secret that goes into block hashes")
    add("--host", default="127.0.0.1", metavar="HOST", help="of the relay's own HTTP endpoint")
    add("--port", default="0", metavar="PORT", help="of /metrics and /health (0: none)")
    add("--log-level", default="info", metavar="LEVEL")
    return parser


def parse_config(argv: list[str]) -> RelayConfig:
    """The configuration that `argv` describes.

    Raises:
        ConfigError: a flag's value cannot be used; the text names the flag.
        SystemExit: argparse refused the flags, or printed the help.
    """
    flags = vars(build_parser().parse_args(argv))
    values: dict[str, Any] = {
        "engines": _engines(flags),
        "secret": _read_secret(flags.pop("secret_file")),
        **flags,
    }
    try:
        return msgspec.convert(values, RelayConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_name_flag(str(error))) from error


def _name_flag(message: str) -> str:
    """`Expected int - at `$.block_tokens`` as `--block-tokens: Expected int`."""
    text, _, path = message.partition(" - at `$.")
    return f"--{path.rstrip('`').replace('_', '-')}: {text}" if path else message


def _engines(flags: dict[str, Any]) -> list[dict[str, Any]]:
    """Takes the flags that describe engines out of `flags`."""
    urls = [_checked_url(url) for url in flags.pop("engine_url")]
    names = flags.pop("instance") or [urlsplit(url).netloc for url in urls]
    events, replay = flags.pop("kv_events"), flags.pop("kv_replay")
    if len(names) != len(urls):
        raise ConfigError(f"--instance: {len(names)} names for {len(urls)} engines")
    if len(set(names)) != len(names):
        raise ConfigError("--instance: names must differ")
    if events and len(urls) > 1:
        raise ConfigError("--kv-events: only with a single --engine-url")
    if replay and len(replay) != len(events):
        raise ConfigError("--kv-replay: give one for each --kv-events")
    return [
        {"url": url, "instance": name, "kv_events": events, "kv_replay": replay}
        for url, name in zip(urls, names, strict=True)
    ]


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"--engine-url: {url!r} is not an http URL")
    return url.rstrip("/")


def _read_secret(path: str | None) -> str:
    if path is None:
        return ""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--secret-file: {error}") from error
    if not secret:
        raise ConfigError(f"--secret-file: {path} is empty")
    return secret
