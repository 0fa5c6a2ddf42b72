"""Puts a router together and runs it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from indexer.core.ingest import Ingest
from indexer.core.tiers import Tier
from indexer.feed import FeedConfig, IndexFeed
from router.app import FrontDoor
from router.config import RouterConfig, read_secret
from router.core.degrade import LEVEL_NAMES, DegradeLevel, Signals
from router.core.dispatch import Dispatcher
from router.core.policies import make_policy
from router.endpoints import Endpoints
from router.keys import KeyMaker
from router.metrics import CounterStructs, Gauges, InstanceStates, Metrics
from router.overlap import IndexOverlap, NoOverlap
from router.own_routes import OwnRoutes
from router.prober import Prober
from router.proxy import Proxy
from router.tokenizer import load_tokenizer
from router.upstream import Upstream

log = logging.getLogger(__name__)


class Router:
    """One router in this event loop. `start`, then `stop`, or `drain` and `stop`."""

    def __init__(
        self,
        config: RouterConfig,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        feed: IndexFeed | None = None,
    ) -> None:
        """Reads the files that the configuration names; needs a running event loop.

        Raises:
            ConfigError: one of them cannot be used.
        """
        self.config = config
        self._clock = clock
        secret = read_secret(config.secret_file)
        api_key = config.api_key or read_secret(config.api_key_file)
        tokenizer = None if config.tokenizer is None else load_tokenizer(config.tokenizer)
        self.keys = KeyMaker(config.block_tokens, tokenizer, secret, config.tokenizer_threads)
        self.feed = feed if feed is not None else _make_feed(config, clock)
        overlap = NoOverlap() if self.feed is None else IndexOverlap(self.feed.ingest)
        self.dispatcher = Dispatcher(
            config.dispatch, make_policy(config.policy, config.work_price), overlap
        )
        self.upstream = Upstream(config.connect_timeout_s, config.upstream_keepalive_s)
        self.endpoints = Endpoints(self.dispatcher, config.probes, config.health)
        self.prober = Prober(config.probes, self.endpoints, self.upstream, clock)
        self.degrade = DegradeLevel(config.degrade)
        self.registry = CollectorRegistry()
        self.metrics = Metrics.create(self.registry)
        proxy = Proxy(
            self.dispatcher, self.endpoints, self.upstream, config.retries, self.metrics, clock
        )
        self.own = OwnRoutes(self.dispatcher, self.endpoints, self.prober, self.registry, clock)
        self.door = FrontDoor(
            config, api_key, proxy, self.own, self.endpoints, self.keys, self.metrics, clock, new_id
        )
        self._register_collectors()
        self._runners: list[web.AppRunner] = []
        self._tick_task: asyncio.Task[None] | None = None
        self.url = self.metrics_url = ""

    # --- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listens; engines and the bus are looked after in the background."""
        self.endpoints.on_added = self.prober.watch
        self.endpoints.on_removed = self.prober.unwatch
        for url in self.config.worker_urls:
            self.endpoints.add(url)
        self.endpoints.publish(self._clock())
        if self.feed is not None:
            await self.feed.start()
        self._tick_task = asyncio.create_task(self._tick())
        self.url = await self._listen(self.door.application(), self.config.host, self.config.port)
        if self.config.prometheus_port:
            self.metrics_url = await self._listen(
                self.own.metrics_application(),
                self.config.prometheus_host,
                self.config.prometheus_port,
            )

    async def drain(self) -> None:
        """Says it is not ready and waits for open requests, within the time allowed."""
        self.own.draining = True
        try:
            async with asyncio.timeout(self.config.drain_s):
                await self.door.idle.wait()
        except TimeoutError:
            log.warning("cutting %d open requests", self.door.open_requests)

    async def stop(self) -> None:
        if self._tick_task is not None:
            self._tick_task.cancel()
            await asyncio.gather(self._tick_task, return_exceptions=True)
        for runner in self._runners:
            await runner.cleanup()
        await self.prober.stop()
        if self.feed is not None:
            await self.feed.stop()
        await self.upstream.close()
        self.keys.close()

    async def _listen(self, app: web.Application, host: str, port: int) -> str:
        runner = web.AppRunner(
            app,
            handler_cancellation=True,  # a client that leaves takes its engine request along
            access_log=None,
            auto_decompress=False,
            max_line_size=65_536,
            max_field_size=65_536,
            shutdown_timeout=0.1,
        )
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, host, port, backlog=4096, reuse_address=True)
        await site.start()
        bound_host, bound_port = runner.addresses[0][:2]
        shown = f"[{bound_host}]" if ":" in bound_host else bound_host
        return f"http://{shown}:{bound_port}"

    # --- what goes on beside requests -------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            self.refresh()
            await asyncio.sleep(self.config.degrade_interval_s)

    def refresh(self) -> None:
        """Takes over announcements and computes how much can be relied on."""
        now_s = self._clock()
        if self.feed is not None:
            ingest = self.feed.ingest
            self.endpoints.follow(ingest.heartbeats.values(), ingest.streams, self.feed.connected)
        self.endpoints.publish(now_s)
        before = self.degrade.level
        level = self.degrade.observe(self._signals(now_s), now_s)
        if level != before:
            log.warning("degrade level %d (%s), was %d", level, LEVEL_NAMES[level], before)

    def _signals(self, now_s: float) -> Signals:
        loads = self.endpoints.fresh_loads(now_s)
        if self.feed is None:
            return Signals(False, False, 0, 0, loads)
        proven_s = 3 * self.config.ingest.heartbeat_s
        streams = self.feed.ingest.streams.values()
        synced = sum(s.synced and now_s - s.proven_s <= proven_s for s in streams)
        return Signals(True, self.feed.connected, len(streams), synced, loads)

    def _register_collectors(self) -> None:
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        gauges: dict[str, Callable[[], float]] = {
            "open_leases": self.dispatcher.leases.open_leases,
            "open_requests": lambda: self.door.open_requests,
            "degrade_level": lambda: self.degrade.level,
            "nats_connected": lambda: float(self.feed is not None and self.feed.connected),
        }
        if self.feed is not None:
            ingest, index = self.feed.ingest, self.feed.ingest.index
            gauges["index_streams"] = lambda: len(ingest.streams)
            gauges["index_gpu_blocks"] = lambda: index.blocks(Tier.GPU)
            self.registry.register(
                CounterStructs({"index_": ingest.counters, "feed_": self.feed.counters})
            )
        self.registry.register(Gauges(gauges))
        self.registry.register(InstanceStates(self.endpoints.count))


def _make_feed(config: RouterConfig, clock: Callable[[], float]) -> IndexFeed | None:
    if config.nats_url is None:
        return None
    feed = FeedConfig(nats_url=config.nats_url, pool=config.pool)
    return IndexFeed(feed, Ingest(config.ingest), clock)


@contextlib.asynccontextmanager
async def running(router: Router) -> AsyncIterator[Router]:
    """A started router; stopped at the end."""
    try:
        await router.start()
        yield router
    finally:
        await router.stop()
