"""Reads engines' counters and the router's CPU at both ends of the measured part."""

import asyncio
from collections.abc import Sequence

import aiohttp

from bench.report.summary import EngineReading, Readings
from bench.stack.scrape import fetch_metrics, metric_sum, process_cpu_s

_TIMEOUT_S = 5.0


class Probe:
    """Call `begin` when the measured part begins and `end` when its last answer has come.

    Args:
        engine_urls: base URLs of the engines; may be empty.
        router_pid: a local process, or None.
    """

    def __init__(self, engine_urls: Sequence[str], router_pid: int | None) -> None:
        self._engine_urls = engine_urls
        self._router_pid = router_pid
        self._cpu_s: float | None = None
        self._before: tuple[EngineReading, ...] | None = None

    async def begin(self) -> None:
        self._cpu_s = self._router_cpu_s()
        self._before = await self._read_engines()

    async def end(self) -> Readings:
        """What changed since `begin`; None for whatever could not be read."""
        used_s = self._router_cpu_s()
        if used_s is not None and self._cpu_s is not None:
            used_s -= self._cpu_s
        return Readings(
            router_cpu_s=used_s,
            before=self._before,
            after=await self._read_engines(),
        )

    def _router_cpu_s(self) -> float | None:
        return process_cpu_s(self._router_pid) if self._router_pid is not None else None

    async def _read_engines(self) -> tuple[EngineReading, ...] | None:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            urls = [f"{url}/metrics" for url in self._engine_urls]
            texts = await asyncio.gather(*(fetch_metrics(session, url) for url in urls))
        readings = [_reading(text) for text in texts if text is not None]
        return tuple(readings) if readings and len(readings) == len(texts) else None


def _reading(text: str) -> EngineReading:
    return EngineReading(
        prompt_tokens=metric_sum(text, "vllm:prompt_tokens_total"),
        cached_tokens=metric_sum(text, "vllm:prefix_cache_hits_total"),
    )
