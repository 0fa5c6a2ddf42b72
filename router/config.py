"""Configuration of a router process: one frozen struct, from a TOML or JSON file and flags."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from indexer.core.streams import IngestConfig
from router.core.degrade import DegradeConfig
from router.core.dispatch import DispatchConfig
from router.core.health import HealthConfig
from router.core.policies import DEFAULT_WORK_PRICE, POLICIES
from router.core.retries import RetryConfig

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class ConfigError(Exception):
    """The configuration cannot be used; the text names the source and the field."""


class ProbeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How instances are watched."""

    interval_s: Seconds = 2.0
    timeout_s: Seconds = 2.0
    failures_to_down: PositiveInt = 2  # probes in a row
    models_interval_s: Seconds = 30.0  # between two looks at /v1/models
    load_fresh_s: Seconds = 5.0  # older load reports count as none


class RouterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set about a router."""

    host: Name = "0.0.0.0"
    port: Port = 30000  # 0: any free one
    prometheus_host: Name = "0.0.0.0"
    prometheus_port: Port = 29000  # 0: no second listener
    worker_urls: tuple[str, ...] = ()
    policy: str = "least_prefill"
    # What a second of new prefill costs besides itself, for those who come later; least_prefill.
    work_price: Annotated[float, msgspec.Meta(ge=0)] = DEFAULT_WORK_PRICE
    nats_url: str | None = None  # None: no bus, own decisions only
    pool: Name = "default"
    block_tokens: PositiveInt = 16
    secret_file: str | None = None
    api_key: str | None = None
    api_key_file: str | None = None
    request_timeout_s: Seconds = 1800.0  # from the request's head to the answer's end
    connect_timeout_s: Seconds = 2.0
    # Below the 5 s after which uvicorn, under both engines, closes idle connections: the router
    # must be the first to let go, or a request meets the engine's close on its way.
    upstream_keepalive_s: Seconds = 4.0
    max_payload_bytes: PositiveInt = 512 * 1024 * 1024
    tokenizer: str | None = None  # folder or tokenizer.json
    tokenizer_threads: PositiveInt = 2
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = False
    ready_file: str | None = None  # gets {"url", "metrics_url"} once the router listens
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    degrade_interval_s: Seconds = 0.25
    dispatch: DispatchConfig = DispatchConfig()
    retries: RetryConfig = RetryConfig()
    probes: ProbeConfig = ProbeConfig()
    health: HealthConfig = HealthConfig()
    degrade: DegradeConfig = DegradeConfig()
    ingest: IngestConfig = IngestConfig()


def load_config(path: str | None, overrides: Mapping[str, Any]) -> RouterConfig:
    """The configuration of `path` with `overrides` laid over it.

    Args:
        path: TOML or JSON (by its ending); None: defaults.
        overrides: field values by dotted path, as flags give them.

    Raises:
        ConfigError: the file cannot be read or a value cannot be used.
    """
    raw = {} if path is None else read_file(path)
    if path is not None:
        _convert(raw, path)
    for dotted, value in overrides.items():
        _put(raw, dotted.split("."), value)
    return _convert(raw, "command line")


def shown_config(config: RouterConfig) -> bytes:
    """The configuration as indented JSON, without the key."""
    if config.api_key is not None:
        config = msgspec.structs.replace(config, api_key="***")
    return msgspec.json.format(msgspec.json.encode(config), indent=2)


def read_file(path: str) -> dict[str, Any]:
    """The raw content of a configuration file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        raw = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: {reason}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a table of fields")
    return raw


def read_secret(path: str | None) -> str:
    """The content of a secret file without surrounding blanks; "" where no file is named."""
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: {reason}") from error


def normal_url(url: str) -> str:
    """An engine's URL as it is compared and extended: without a slash at its end.

    Raises:
        ValueError: not an http URL with a host.
    """
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError("expected http://host:port")
    _ = parts.port  # raises ValueError where it is no number
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def _put(raw: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        raw = raw.setdefault(name, {})
    raw[path[-1]] = value


def _convert(raw: dict[str, Any], source: str) -> RouterConfig:
    try:
        config = msgspec.convert(raw, RouterConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_readable(str(error))}") from error
    _check(config, source)
    return config


_LOCATED = re.compile(r"(?P<what>.*) - at `\$\.?(?P<where>.*)`", re.DOTALL)


def _readable(message: str) -> str:
    """`Expected … - at `$.a.b`` as `a.b: expected …`."""
    found = _LOCATED.fullmatch(message)
    what, where = (found["what"], found["where"]) if found else (message, "")
    what = what.replace("Object contains unknown field", "unknown field").replace("`", "")
    what = what[:1].lower() + what[1:]
    return f"{where}: {what}" if where else what


def _check(config: RouterConfig, source: str) -> None:
    if config.policy not in POLICIES:
        raise ConfigError(f"{source}: policy: expected one of {', '.join(POLICIES)}")
    for position, url in enumerate(config.worker_urls):
        try:
            normal_url(url)
        except ValueError as error:
            raise ConfigError(f"{source}: worker_urls[{position}]: {error}, got {url!r}") from error
