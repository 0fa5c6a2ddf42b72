"""Watches instances: is it there, what does it serve, how much does it have to do."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from router.config import ProbeConfig
from router.core.draw import draw
from router.endpoints import Endpoints, Instance, LoadReport
from router.upstream import Upstream, UpstreamError

_LIMIT_BYTES: Final = 8 * 1024 * 1024
_RUNNING = re.compile(
    rb"^(?:vllm:num_requests_running|sglang:num_running_reqs)(?:\{[^\n]*\})? ([0-9.e+]+)",
    re.MULTILINE,
)
_WAITING = re.compile(
    rb"^(?:vllm:num_requests_waiting|sglang:num_queue_reqs)(?:\{[^\n]*\})? ([0-9.e+]+)",
    re.MULTILINE,
)


def parse_load(metrics: bytes) -> tuple[int, int] | None:
    """(running, waiting) over all ranks, from vLLM's or SGLang's /metrics; None if not in it."""
    running, waiting = _RUNNING.findall(metrics), _WAITING.findall(metrics)
    if not running or not waiting:
        return None
    try:
        return int(sum(map(float, running))), int(sum(map(float, waiting)))
    except ValueError:
        return None


def parse_models(body: bytes) -> list[dict[str, Any]] | None:
    """The cards in an answer of /v1/models; None where it is something else."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    data = decoded.get("data") if isinstance(decoded, dict) else None
    if not isinstance(data, list):
        return None
    return [card for card in data if isinstance(card, dict)]


class Prober:
    """One watching task for each instance."""

    def __init__(
        self,
        config: ProbeConfig,
        endpoints: Endpoints,
        upstream: Upstream,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._endpoints = endpoints
        self._upstream = upstream
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asked_models_s: dict[str, float] = {}

    def watch(self, instance: Instance) -> None:
        self._tasks[instance.url] = asyncio.create_task(self._watch(instance))

    def unwatch(self, instance: Instance) -> None:
        self._asked_models_s.pop(instance.url, None)
        task = self._tasks.pop(instance.url, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def learn_models(self) -> None:
        """Asks the instances whose models are not known yet, and waits for that."""
        unknown = [
            instance
            for instance in self._endpoints.instances()
            if instance.url not in self._asked_models_s and instance.answers_probes is not False
        ]
        await asyncio.gather(*map(self._probe_models, unknown))

    async def _watch(self, instance: Instance) -> None:
        rounds = 0
        while True:
            await self._probe(instance)
            rounds += 1
            # Spread a little, so that many engines are not all asked in the same moment.
            share = 0.9 + 0.2 * draw(rounds, instance.url)
            await asyncio.sleep(self._config.interval_s * share)

    async def _probe(self, instance: Instance) -> None:
        before = instance.state, instance.models
        await self._ask(instance)
        if (instance.state, instance.models) != before:
            self._endpoints.publish(self._clock())

    async def _ask(self, instance: Instance) -> None:
        answer = await self._get(instance, "/health")
        # 4xx is an answer too: an engine may have no such page or ask for a key.
        self._endpoints.probed(instance, answer is not None and answer[0] < 500)
        if not instance.answers_probes:
            return
        asked_s = self._asked_models_s.get(instance.url)
        if asked_s is None or self._clock() - asked_s >= self._config.models_interval_s:
            await self._probe_models(instance)
        if not instance.announced:
            await self._probe_load(instance)

    async def _probe_models(self, instance: Instance) -> None:
        answer = await self._get(instance, "/v1/models")
        if answer is None:
            return
        self._asked_models_s[instance.url] = self._clock()
        cards = parse_models(answer[1]) if answer[0] == 200 else None
        if cards is not None:
            self._endpoints.learned(instance, cards)

    async def _probe_load(self, instance: Instance) -> None:
        answer = await self._get(instance, "/metrics")
        load = parse_load(answer[1]) if answer is not None and answer[0] == 200 else None
        if load is not None:
            instance.loads = {0: LoadReport(load[0], load[1], self._clock())}

    async def _get(self, instance: Instance, path: str) -> tuple[int, bytes] | None:
        try:
            return await self._upstream.fetch(
                instance.url + path, self._config.timeout_s, _LIMIT_BYTES
            )
        except UpstreamError:
            return None  # a probe's answer, not an error of ours
