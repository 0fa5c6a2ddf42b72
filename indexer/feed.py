"""NATS adapter of ingestion: subscriptions in, snapshot requests out.

Nobody waits for NATS: the connection is made in the background and kept up for ever. While it is
away, `connected` is False and ingestion is told that silence means nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from indexer.core import events, subjects
from indexer.core.events import SnapshotRequest, WireError
from indexer.core.ingest import Effect, FetchSnapshot, Ingest
from indexer.snapshot_client import SnapshotUnavailableError, fetch_snapshot

log = logging.getLogger(__name__)

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class FeedConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the feed talks to NATS."""

    nats_url: str = "nats://127.0.0.1:4222"
    pool: str = "default"
    reconnect_wait_s: Seconds = 0.25
    snapshot_timeout_s: Seconds = 2.0  # between two chunks
    max_parallel_snapshots: Annotated[int, msgspec.Meta(ge=1)] = 8
    tick_s: Seconds = 0.1
    pending_bytes_limit: Annotated[int, msgspec.Meta(ge=1)] = 128 * 1024 * 1024


class FeedCounters(msgspec.Struct):
    """What the adapter saw besides what ingestion counts."""

    messages: int = 0
    bad_messages: int = 0
    skipped_ops: int = 0
    nats_errors: int = 0  # slow consumer drops among them; they show as gaps
    disconnects: int = 0


class IndexFeed:
    """Keeps an `Ingest` current from the event bus of one pool."""

    def __init__(
        self,
        config: FeedConfig,
        ingest: Ingest,
        clock: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`clock` gives monotonic seconds; `on_change` runs after instances may have changed."""
        self.config = config
        self.ingest = ingest
        self.counters = FeedCounters()
        self.connected = False
        self._clock = clock
        self._on_change = on_change
        self._client = Client()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetch_slots = asyncio.Semaphore(config.max_parallel_snapshots)

    async def start(self) -> None:
        """Begins to connect and returns at once."""
        self.ingest.on_bus_down(self._clock())
        self._spawn(self._connect())
        self._spawn(self._tick())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._client.close()

    # --- connection -------------------------------------------------------------------------

    async def _connect(self) -> None:
        await self._client.connect(
            servers=[self.config.nats_url],
            name="warmroute-feed",
            max_reconnect_attempts=-1,
            reconnect_time_wait=self.config.reconnect_wait_s,  # type: ignore[arg-type]  # any real number works
            connect_timeout=2,
            ping_interval=2,
            max_outstanding_pings=2,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_connected,
            error_cb=self._on_error,
        )
        pool, limit = self.config.pool, self.config.pending_bytes_limit
        for subject, callback in (
            (subjects.all_events(pool), self._on_events),
            (subjects.all_heartbeats(pool), self._on_heartbeat),
        ):
            await self._client.subscribe(
                subject, cb=callback, pending_msgs_limit=1 << 20, pending_bytes_limit=limit
            )
        await self._client.flush()
        await self._on_connected()

    async def _on_connected(self) -> None:
        self.connected = True
        self.ingest.on_bus_up(self._clock())
        log.info("connected to NATS at %s", self.config.nats_url)
        self._on_change()

    async def _on_disconnected(self) -> None:
        if self.connected:
            self.connected = False
            self.counters.disconnects += 1
            self.ingest.on_bus_down(self._clock())
            log.warning("lost NATS at %s; going on without it", self.config.nats_url)
            self._on_change()

    async def _on_error(self, error: Exception) -> None:
        self.counters.nats_errors += 1
        log.debug("NATS: %s", error)

    # --- messages ---------------------------------------------------------------------------

    async def _on_events(self, message: Msg) -> None:
        self.counters.messages += 1
        try:
            batch, skipped = events.decode_batch(message.data)
        except WireError as error:
            self._note_bad(message, error)
            return
        self.counters.skipped_ops += skipped
        self._perform(self.ingest.on_batch(batch, self._clock()))

    async def _on_heartbeat(self, message: Msg) -> None:
        self.counters.messages += 1
        try:
            heartbeat = events.decode_heartbeat(message.data)
        except WireError as error:
            self._note_bad(message, error)
            return
        self._perform(self.ingest.on_heartbeat(heartbeat, self._clock()))
        self._on_change()

    def _note_bad(self, message: Msg, error: WireError) -> None:
        self.counters.bad_messages += 1
        log.debug("skipped a message on %s: %s", message.subject, error)

    # --- effects ----------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, FetchSnapshot):
                self._spawn(self._fetch(effect))
            else:
                self._on_change()

    async def _fetch(self, wanted: FetchSnapshot) -> None:
        try:
            async with self._fetch_slots:
                snapshot = await fetch_snapshot(
                    self._client,
                    subjects.snapshot(self.config.pool, wanted.instance),
                    SnapshotRequest(wanted.rank),
                    self.config.snapshot_timeout_s,
                )
        except SnapshotUnavailableError as error:
            log.info("no snapshot of %s rank %d: %s", wanted.instance, wanted.rank, error)
            self._perform(
                self.ingest.on_snapshot_failed(wanted.instance, wanted.rank, self._clock())
            )
        else:
            self._perform(self.ingest.on_snapshot(snapshot, self._clock()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.config.tick_s)
            self._perform(self.ingest.due(self._clock()))

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("index feed task failed", exc_info=task.exception())
