"""Asks an engine over HTTP what it serves and where it publishes."""

from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from indexer.relay.config import EngineTarget
from indexer.relay.endpoints import (
    DiscoveryError,
    EngineInfo,
    RankEndpoints,
    configured_ranks,
    model_names,
    role_of,
    sglang_ranks,
    vllm_ranks,
)

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)


async def discover(session: aiohttp.ClientSession, target: EngineTarget) -> EngineInfo:
    """What the engine tells, with the endpoints of `target` instead where it has any.

    Raises:
        DiscoveryError: the engine is not reachable, or does not tell enough.
    """
    models = model_names(await _get(session, target.url, "/v1/models"))
    server_info = await _get_optional(session, target.url, "/server_info")
    if isinstance(server_info, Mapping) and "version" in server_info:
        ranks = _configured(target) or sglang_ranks(server_info, target.host)
        name = f"sglang {server_info['version']}"
        return EngineInfo(name, models, ranks, role_of(server_info))
    ranks = _configured(target) or await _ask_vllm(session, target)
    version = await _get_optional(session, target.url, "/version")
    name = f"vllm {version['version']}" if _has(version, "version") else ""
    return EngineInfo(name, models, ranks)


async def _ask_vllm(
    session: aiohttp.ClientSession, target: EngineTarget
) -> tuple[RankEndpoints, ...]:
    sources = await _get_optional(session, target.url, "/kv_event_sources")
    if sources is None:
        raise DiscoveryError("this version does not tell its KV event endpoints; give --kv-events")
    return vllm_ranks(sources, target.host)


def _configured(target: EngineTarget) -> tuple[RankEndpoints, ...]:
    return configured_ranks(target.kv_events, target.kv_replay, target.host)


def _has(answer: Any, key: str) -> bool:
    return isinstance(answer, Mapping) and key in answer


async def _get(session: aiohttp.ClientSession, url: str, path: str) -> Any:
    status, answer = await _fetch(session, url + path)
    if status != 200:
        raise DiscoveryError(f"GET {path}: status {status}")
    return answer


async def _get_optional(session: aiohttp.ClientSession, url: str, path: str) -> Any:
    """The answer, or None where the engine has no such page."""
    return (await _fetch(session, url + path))[1]


async def _fetch(session: aiohttp.ClientSession, url: str) -> tuple[int, Any]:
    """Status and decoded JSON, the latter None unless the status is 200."""
    try:
        async with session.get(url, timeout=_TIMEOUT) as response:
            if response.status != 200:
                return response.status, None
            return 200, await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
        raise DiscoveryError(f"GET {url}: {error!r}") from error
