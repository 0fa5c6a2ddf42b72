"""NATS subjects. Pool, instance and router names are escaped to fit into one subject token."""

import re
from typing import Final

_SAFE: Final = re.compile(r"[A-Za-z0-9_-]")
PREFIX: Final = "warmroute"


def escape(name: str) -> str:
    """One subject token that names `name` and nothing else; reversible by `unescape`.

    Raises:
        ValueError: the name is empty.
    """
    if not name:
        raise ValueError("a pool, instance or router name must not be empty")
    return "".join(c if _SAFE.match(c) else _hex(c) for c in name)


def _hex(character: str) -> str:
    return "".join(f"={byte:02X}" for byte in character.encode())


def unescape(token: str) -> str:
    raw = re.sub(rb"=([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), token.encode())
    return raw.decode()


def events(pool: str, instance: str, rank: int) -> str:
    return f"{PREFIX}.{escape(pool)}.kv.{escape(instance)}.{rank}"


def all_events(pool: str) -> str:
    return f"{PREFIX}.{escape(pool)}.kv.*.*"


def heartbeat(pool: str, instance: str) -> str:
    return f"{PREFIX}.{escape(pool)}.hb.{escape(instance)}"


def all_heartbeats(pool: str) -> str:
    return f"{PREFIX}.{escape(pool)}.hb.*"


def snapshot(pool: str, instance: str) -> str:
    return f"{PREFIX}.{escape(pool)}.snapshot.{escape(instance)}"


def match(pool: str) -> str:
    return f"{PREFIX}.{escape(pool)}.match"
