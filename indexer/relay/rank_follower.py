"""Follows one rank of an engine: its sockets in, its batches on the bus out."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Final

import msgspec
import zmq.asyncio

from indexer.core import events
from indexer.core.engine_events import BatchDecoder, EngineBatch, EngineEventError, split_frames
from indexer.core.events import StreamState
from indexer.core.outgoing import EpochSource, OutgoingStream
from indexer.relay.endpoints import RankEndpoints
from indexer.relay.load_report import RankLoad
from indexer.relay.metrics import RelayMetrics
from indexer.relay.sequence import Action, Ask, Deliver, Missing, Reset, SequenceMerger
from indexer.relay.zmq_source import ReplayBrokenError, replayed_messages, subscription

_log = logging.getLogger(__name__)

_REPLAY_IDLE_S: Final = 5.0
# After such a silence the engine is asked once for what the live socket may have missed: a last
# message, or all before the subscription reached the engine.
_QUIET_S: Final = 2.0
# zmq hands out queued messages without giving way to other tasks.
_MESSAGES_PER_TURN: Final = 64
_GARBAGE: Final = EngineBatch(-1.0, [])

Post = Callable[[bytes], bool]


class RankFollower:
    """Keeps one outgoing stream in step with the engine's publisher.

    Args:
        endpoints: where the publisher is.
        stream: of this rank, new.
        epochs: numbers for further epochs.
        post: hands an encoded batch to the bus; False if dropped.
        metrics: of the process.
        context: for sockets.
        clock: wall clock, seconds.
    """

    def __init__(
        self,
        endpoints: RankEndpoints,
        stream: OutgoingStream,
        epochs: EpochSource,
        post: Post,
        metrics: RelayMetrics,
        context: zmq.asyncio.Context,
        clock: Callable[[], float],
    ) -> None:
        self.stream = stream
        self.on_new_epoch: Callable[[], None] = lambda: None
        self._endpoints = endpoints
        self._epochs = epochs
        self._post = post
        self._metrics = metrics
        self._context = context
        self._clock = clock
        self._labels = (stream.instance, str(stream.rank))
        self._decoder = BatchDecoder()
        self._merger: SequenceMerger[EngineBatch] = SequenceMerger(
            can_replay=endpoints.replay is not None
        )
        self._replay: asyncio.Task[None] | None = None
        self._event_lag_s: float | None = None

    async def run(self) -> None:
        """Follows until cancelled.

        Raises:
            zmq.ZMQError: an endpoint is not an address.
        """
        async with asyncio.TaskGroup() as self._tasks:
            with subscription(self._context, self._endpoints.events) as socket:
                self._act(self._merger.begin())
                await self._read_live(socket)

    def suspect_restart(self) -> None:
        """The engine may be another process than before; to be called while running."""
        self._act(self._merger.suspect())

    def state(self, load: RankLoad, load_age_s: float | None) -> StreamState:
        return msgspec.structs.replace(
            self.stream.state(),
            running=load.running,
            waiting=load.waiting,
            kv_usage=load.kv_usage,
            load_age_s=load_age_s,
            event_lag_s=self._event_lag_s,
        )

    async def _read_live(self, socket: zmq.asyncio.Socket) -> None:
        received = 0
        is_checked = False
        while True:
            try:
                async with asyncio.timeout(None if is_checked else _QUIET_S):
                    frames = await socket.recv_multipart()
            except TimeoutError:
                is_checked = True
                self._act(self._merger.recheck())
                continue
            is_checked = False
            self._take(frames, self._merger.live)
            received += 1
            if received % _MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _read_replay(self, endpoint: str, start: int) -> None:
        outcome = "abandoned"
        received = 0
        replay = replayed_messages(self._context, endpoint, start, _REPLAY_IDLE_S)
        try:
            async with aclosing(replay) as messages:
                async for frames in messages:
                    self._take(frames, self._merger.replayed)
                    if self._replay is not asyncio.current_task():
                        return
                    received += 1
                    if received % _MESSAGES_PER_TURN == 0:
                        await asyncio.sleep(0)
            outcome = "complete"
        except (ReplayBrokenError, EngineEventError) as error:
            outcome = "broken"
            _log.warning("%s rank %s: replay: %s", *self._labels, error)
        finally:
            self._metrics.replays.labels(*self._labels, outcome).inc()
        self._act(self._merger.replay_ended(complete=outcome == "complete"))

    def _take(
        self,
        frames: list[bytes],
        merge: Callable[[int, EngineBatch], list[Action[EngineBatch]]],
    ) -> None:
        try:
            seq, payload = split_frames(frames)
        except EngineEventError:
            self._metrics.garbage.labels(*self._labels).inc()
            return
        try:
            batch = self._decoder.decode(payload)
        except EngineEventError as error:
            # Its number still counts, or it would look like a gap for ever.
            batch = _GARBAGE
            self._metrics.garbage.labels(*self._labels).inc()
            _log.warning("%s rank %s: %s", *self._labels, error)
        self._act(merge(seq, batch))

    def _act(self, actions: Iterable[Action[EngineBatch]]) -> None:
        for action in actions:
            match action:
                case Deliver(batch):
                    self._publish(batch)
                case Ask(start):
                    self._start_replay(start)
                case Reset(reason):
                    self._begin_epoch(reason)
                case Missing(count):
                    self._metrics.missing.labels(*self._labels).inc(count)
        if not self._merger.asking:
            self._stop_replay()
        self._metrics.duplicates.labels(*self._labels).inc(self._merger.take_duplicates())

    def _start_replay(self, start: int) -> None:
        self._stop_replay()
        if self._endpoints.replay is not None:
            self._replay = self._tasks.create_task(self._read_replay(self._endpoints.replay, start))

    def _stop_replay(self) -> None:
        task, self._replay = self._replay, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _begin_epoch(self, reason: str) -> None:
        self._metrics.resets.labels(*self._labels, reason).inc()
        _log.info("%s rank %s: new epoch after a %s", *self._labels, reason)
        self.stream.begin_epoch(self._epochs.next(int(self._clock() * 1e6)))
        self.on_new_epoch()

    def _publish(self, batch: EngineBatch) -> None:
        now_s = self._clock()
        for message in self.stream.feed(batch.events, now_s):
            if self._post(events.encode(message)):
                self._metrics.published.labels(*self._labels).inc()
        self._event_lag_s = max(0.0, now_s - batch.ts) if batch.ts > 0 else None
        self._count(batch)

    def _count(self, batch: EngineBatch) -> None:
        metrics, held = self._metrics, self.stream.held
        metrics.engine_batches.labels(*self._labels).inc()
        metrics.held.labels(*self._labels).set(held.count)
        metrics.parked.labels(*self._labels).set(held.parked)
        if self._event_lag_s is not None:
            metrics.event_lag_s.labels(*self._labels).set(self._event_lag_s)
        for reason, count in (*batch.skipped.items(), *held.skipped.items()):
            metrics.skipped.labels(*self._labels, reason).inc(count)
        held.skipped.clear()
