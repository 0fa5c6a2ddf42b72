"""A relay process: one bus, one follower for each engine."""

import asyncio
import logging
import random
import time
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import zmq.asyncio
from prometheus_client import CollectorRegistry

from indexer.core.outgoing import EpochSource
from indexer.relay.admin_http import admin_endpoint
from indexer.relay.config import RelayConfig
from indexer.relay.engine_follower import EngineFollower, Surroundings
from indexer.relay.metrics import RelayMetrics
from indexer.relay.nats_bus import NatsBus

_log = logging.getLogger(__name__)

_DRAIN_TIMEOUT_S: Final = 2.0
_PAUSE_AFTER_FAILURE_S: Final = 1.0


async def serve(config: RelayConfig, stop: asyncio.Event) -> None:
    """Relays until `stop` is set, then says goodbye for every engine.

    Raises:
        OSError: the HTTP endpoint's address cannot be listened on.
    """
    metrics = RelayMetrics(CollectorRegistry())
    bus = NatsBus(config.nats_url, metrics, random.Random())
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        context = zmq.asyncio.Context()
        stack.callback(context.destroy, linger=0)
        around = Surroundings(
            config,
            bus,
            metrics,
            session,
            context,
            EpochSource(),
            time.time,  # noqa: TID251 - the one clock of the process, passed on from here
            time.monotonic,
        )
        followers = [EngineFollower(target, around) for target in config.engines]
        await stack.enter_async_context(
            admin_endpoint(
                config.host, config.port, metrics.registry, lambda: _health(bus, followers)
            )
        )
        await _relay(bus, followers, metrics, stop)


async def _relay(
    bus: NatsBus, followers: list[EngineFollower], metrics: RelayMetrics, stop: asyncio.Event
) -> None:
    connection = asyncio.create_task(bus.run())
    following = [asyncio.create_task(_keep_following(f, metrics)) for f in followers]
    try:
        await stop.wait()
    finally:
        await _cancel(*following)
        for follower in followers:
            follower.say_goodbye()
        await bus.drain(_DRAIN_TIMEOUT_S)
        await _cancel(connection)


async def _keep_following(follower: EngineFollower, metrics: RelayMetrics) -> None:
    """One engine's trouble must not end the others' service."""
    while True:
        try:
            await follower.run()
        except Exception:  # noqa: BLE001 - whatever it is: counted, logged, tried again
            metrics.failures.labels(follower.target.instance).inc()
            _log.exception("%s: unexpected error; starting over", follower.target.instance)
        await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _health(bus: NatsBus, followers: list[EngineFollower]) -> dict[str, Any]:
    """Facts only: a relay without NATS or engine is waiting, not broken."""
    return {
        "nats": "connected" if bus.connected else "disconnected",
        "engines": {follower.target.instance: follower.status for follower in followers},
    }
