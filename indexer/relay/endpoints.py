"""What engines tell about themselves, as plain values. Pure: answers in, facts out."""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Final

import msgspec

_WILDCARDS: Final = ("*", "0.0.0.0", "::", "[::]", "")


class DiscoveryError(Exception):
    """An engine does not tell what is needed to follow it; the text says what is missing."""


class RankEndpoints(msgspec.Struct, frozen=True):
    """ZMQ endpoints of one rank's publisher."""

    rank: int
    events: str
    replay: str | None = None


class EngineInfo(msgspec.Struct, frozen=True):
    """One engine as it described itself."""

    engine: str  # "vllm 0.33.0" or the like
    models: tuple[str, ...]  # the served model first
    ranks: tuple[RankEndpoints, ...]
    role: str = "both"


def reachable(endpoint: str, host: str) -> str:
    """`endpoint` with `host` in place of a wildcard, as a subscriber has to spell it.

    Raises:
        DiscoveryError: not a `scheme://` address.
    """
    scheme, separator, address = endpoint.partition("://")
    if not separator:
        raise DiscoveryError(f"{endpoint!r} is not a ZMQ endpoint")
    name, colon, port = address.rpartition(":")
    if scheme != "tcp" or not colon or name not in _WILDCARDS:
        return endpoint
    return f"tcp://{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def vllm_ranks(sources: object, host: str) -> tuple[RankEndpoints, ...]:
    """From `GET /kv_event_sources`: publisher settings by rank, with resolved ports.

    Raises:
        DiscoveryError: not of that form, or no rank publishes.
    """
    if not isinstance(sources, Mapping) or not sources:
        raise DiscoveryError("/kv_event_sources names no publisher; are KV events switched on?")
    try:
        return tuple(
            RankEndpoints(
                int(rank),
                reachable(source["endpoint"], host),
                reachable(replay, host) if (replay := source.get("replay_endpoint")) else None,
            )
            for rank, source in sorted(sources.items(), key=lambda item: int(item[0]))
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DiscoveryError(f"/kv_event_sources: {error!r}") from error


def sglang_ranks(server_info: Mapping[str, Any], host: str) -> tuple[RankEndpoints, ...]:
    """From `GET /server_info`: base ports to which the rank is added.

    Raises:
        DiscoveryError: KV events are off, or the fields are not as expected.
    """
    told = server_info.get("kv_events")
    if not isinstance(told, Mapping):
        raise DiscoveryError("/server_info has no kv_events; are KV events switched on?")
    try:
        name = str(told.get("endpoint_host") or "*")
        name = _bracketed(host if name in _WILDCARDS else name.strip("[]"))
        events, replay = told["endpoint_port_base"], told.get("replay_endpoint_port_base")
        return tuple(
            RankEndpoints(
                rank,
                f"tcp://{name}:{events + rank}",
                f"tcp://{name}:{replay + rank}" if replay else None,
            )
            for rank in range(told.get("dp_size") or 1)
        )
    except (KeyError, TypeError) as error:
        raise DiscoveryError(f"/server_info kv_events: {error!r}") from error


def configured_ranks(
    events: tuple[str, ...], replay: tuple[str, ...], host: str
) -> tuple[RankEndpoints, ...]:
    """From flags, one endpoint for each rank; `replay` is empty or as long as `events`.

    Raises:
        DiscoveryError: one of them is not an address.
    """
    return tuple(
        RankEndpoints(rank, reachable(live, host), reachable(again, host) if again else None)
        for rank, (live, again) in enumerate(zip_longest(events, replay))
    )


def model_names(answer: object) -> tuple[str, ...]:
    """From `GET /v1/models`: base models before adapters.

    Raises:
        DiscoveryError: it lists none.
    """
    cards = answer.get("data") if isinstance(answer, Mapping) else None
    known = [card for card in cards or () if isinstance(card, Mapping) and card.get("id")]
    known.sort(key=lambda card: card.get("parent") is not None)
    if not known:
        raise DiscoveryError("/v1/models lists no model")
    return tuple(str(card["id"]) for card in known)


def role_of(server_info: Mapping[str, Any]) -> str:
    mode = server_info.get("disaggregation_mode")
    return mode if mode in ("prefill", "decode") else "both"
