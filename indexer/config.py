"""Configuration of the indexer process."""

from pathlib import Path
from typing import Annotated

import msgspec

from indexer.core.streams import IngestConfig
from indexer.feed import FeedConfig


class ConfigError(Exception):
    """A setting is wrong; the text names file, field and what is expected."""


class IndexerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of `warmroute indexer`."""

    host: str = "0.0.0.0"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8090  # 0: any free port
    block_tokens: Annotated[int, msgspec.Meta(ge=1)] = 16
    secret_file: str = ""  # deployment secret of the block namespace; "": none
    max_match_blocks: Annotated[int, msgspec.Meta(ge=1)] = 131_072  # longest prompt answered
    log_level: str = "info"
    feed: FeedConfig = FeedConfig()
    ingest: IngestConfig = IngestConfig()


def load_config(path: Path | None, overrides: dict[str, object]) -> IndexerConfig:
    """File settings (TOML or JSON) with command-line settings laid over them.

    Raises:
        ConfigError: the file cannot be read or a setting is wrong.
    """
    tree: dict[str, object] = {} if path is None else _read(path)
    for dotted, value in overrides.items():
        _put(tree, dotted.split("."), value)
    try:
        return msgspec.convert(tree, IndexerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path or 'command line'}: {error}") from error


def _read(path: Path) -> dict[str, object]:
    try:
        data = path.read_bytes()
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
        return decode(data, type=dict[str, object])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _put(tree: dict[str, object], path: list[str], value: object) -> None:
    for name in path[:-1]:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{name}: expected a table")
        tree = below
    tree[path[-1]] = value


def read_secret(path: str) -> str:
    """The deployment secret, without surrounding white space; "" when no file is named.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(f"secret_file: {error}") from error
