"""Folds event batches, heartbeats and snapshots of many streams into one index.

Pure: time comes in as `now_s` (any monotonic clock), work for the outside goes out as effects.
A stream is one (instance, rank). It is *synced* when its content in the index is exactly what its
owner held after the batch the cursor names; otherwise it waits for a snapshot, and batches that
arrive meanwhile are kept aside within a bound.
"""

from collections.abc import Sequence

import msgspec

from indexer.core.blocks import unpack_hashes
from indexer.core.cursor import Step
from indexer.core.events import Batch, Clear, Heartbeat, Op, Register, StreamState, tier_of
from indexer.core.index import PrefixIndex
from indexer.core.streams import IngestConfig, IngestCounters, Stream, StreamKey


class FetchSnapshot(msgspec.Struct, frozen=True):
    """Ask the stream's owner for all it holds, then call `on_snapshot` or `on_snapshot_failed`."""

    instance: str
    rank: int


class Forgotten(msgspec.Struct, frozen=True):
    """The instance was silent for so long, or said goodbye, that nothing of it is kept."""

    instance: str


Effect = FetchSnapshot | Forgotten


class Snapshot(msgspec.Struct, frozen=True):
    """A complete snapshot: content of a stream right after batch `seq` of `epoch`."""

    instance: str
    rank: int
    epoch: int
    seq: int
    count: int
    digest: int
    ops: Sequence[Register]


class StreamMatch(msgspec.Struct, frozen=True):
    """What the index says about one stream for one prompt."""

    instance: str
    rank: int
    depth_blocks: tuple[int, int, int, int]  # cumulative over tiers, fastest first
    confidence: float  # 0 to 1: how likely the depth is still so
    staleness_s: float  # since the content was last known to be complete


class Ingest:
    """The index with the state of every stream that feeds it."""

    def __init__(self, config: IngestConfig) -> None:
        self.config = config
        self.index = PrefixIndex()
        self.counters = IngestCounters()
        self.streams: dict[StreamKey, Stream] = {}
        self.heartbeats: dict[str, Heartbeat] = {}
        self._by_source: dict[int, StreamKey] = {}
        self._bus_down_since_s: float | None = None

    # --- what arrives -----------------------------------------------------------------------

    def on_batch(self, batch: Batch, now_s: float) -> list[Effect]:
        """Applies, buffers or refuses one batch; idempotent for duplicates."""
        stream = self._stream((batch.instance, batch.rank), now_s)
        if stream is None:
            return []
        step = stream.cursor.classify(batch.epoch, batch.seq)
        if step is Step.STALE_EPOCH:
            self.counters.fenced_batches += 1
            return []
        if step is Step.NEW_EPOCH:
            self._begin_epoch(stream, batch.epoch)
            step = stream.cursor.classify(batch.epoch, batch.seq)
        if step is Step.DUPLICATE:
            self.counters.duplicate_batches += 1
            return []
        if step is Step.NEXT and stream.synced:
            self._apply(stream, batch, now_s)
            return []
        if stream.synced:
            self.counters.gaps += 1
        self._buffer(stream, batch)
        return self._want_snapshot(stream, now_s)

    def on_heartbeat(self, heartbeat: Heartbeat, now_s: float) -> list[Effect]:
        """Notes the instance, compares content digests, finds silent losses."""
        if heartbeat.leaving:
            return self._forget(heartbeat.instance)
        if any(self._is_older_life(heartbeat.instance, s, now_s) for s in heartbeat.streams):
            self.counters.fenced_heartbeats += 1
            return []
        self.heartbeats[heartbeat.instance] = heartbeat
        effects: list[Effect] = []
        for state in heartbeat.streams:
            stream = self._stream((heartbeat.instance, state.rank), now_s)
            if stream is not None:
                stream.heartbeat_s = now_s
                stream.block_tokens = heartbeat.block_tokens
                effects += self._compare(stream, state, now_s)
        return effects

    def on_snapshot(self, snapshot: Snapshot, now_s: float) -> list[Effect]:
        """Replaces the stream's content, then applies what was buffered meanwhile."""
        stream = self.streams.get((snapshot.instance, snapshot.rank))
        if stream is None:
            return []
        stream.fetching = False
        if snapshot.epoch < stream.cursor.epoch:
            self.counters.fenced_snapshots += 1
            return self._want_snapshot(stream, now_s)
        self._replace(stream, snapshot)
        if self.index.digest(stream.source) != snapshot.digest:
            self.counters.bad_snapshots += 1
            stream.synced = False
            return self._retry_later(stream, now_s)
        self.counters.snapshots_applied += 1
        stream.synced, stream.failures, stream.proven_s = True, 0, now_s
        return self._drain_buffer(stream, now_s)

    def on_snapshot_failed(self, instance: str, rank: int, now_s: float) -> list[Effect]:
        """Plans another try; `due` gives it out when its time has come."""
        stream = self.streams.get((instance, rank))
        if stream is None:
            return []
        stream.fetching = False
        self.counters.snapshots_failed += 1
        return self._retry_later(stream, now_s)

    def on_bus_down(self, now_s: float) -> None:
        """From now on silence says nothing about instances."""
        if self._bus_down_since_s is None:
            self._bus_down_since_s = now_s

    def on_bus_up(self, now_s: float) -> None:
        """Silence counts again; time spent without the bus is not held against anybody."""
        if self._bus_down_since_s is not None:
            self._bus_down_since_s = None
            for stream in self.streams.values():
                stream.heartbeat_s = now_s

    def due(self, now_s: float) -> list[Effect]:
        """What time alone brings: snapshot retries and the end of silent instances."""
        if self._bus_down_since_s is not None:
            return []
        effects: list[Effect] = []
        for stream in list(self.streams.values()):
            if stream.key not in self.streams:
                continue  # went with another rank of its instance
            if now_s - stream.heartbeat_s > self.config.drop_after_s:
                effects += self._forget(stream.key[0])
            elif self._is_behind_too_long(stream, now_s):
                self.counters.lost_tails += 1
                stream.synced, stream.behind_since_s = False, None
            if not stream.synced and not stream.fetching and now_s >= stream.retry_s:
                effects += self._want_snapshot(stream, now_s)
        return effects

    # --- what is asked ----------------------------------------------------------------------

    def match(self, hashes: Sequence[int], block_tokens: int, now_s: float) -> list[StreamMatch]:
        """Depths of every live stream with this block size, also those that hold nothing."""
        tiers = self.index.match(hashes)
        return [
            StreamMatch(
                key[0],
                key[1],
                (
                    tiers[0].get(stream.source, 0),
                    tiers[1].get(stream.source, 0),
                    tiers[2].get(stream.source, 0),
                    tiers[3].get(stream.source, 0),
                ),
                stream.confidence(self.config, now_s),
                max(0.0, now_s - stream.proven_s),
            )
            for key, stream in self.streams.items()
            if stream.block_tokens == block_tokens and not self.is_retired(stream, now_s)
        ]

    def is_retired(self, stream: Stream, now_s: float) -> bool:
        """Whether the stream's content is kept but no longer scored."""
        return now_s - stream.proven_s > self.config.retire_after_s

    # --- inside -----------------------------------------------------------------------------

    def _stream(self, key: StreamKey, now_s: float) -> Stream | None:
        stream = self.streams.get(key)
        if stream is None:
            if len(self.streams) >= self.config.max_streams:
                self.counters.refused_streams += 1
                return None
            source = self.index.open_source()
            stream = self.streams[key] = Stream(key, source, now_s)
            self._by_source[source] = key
        return stream

    def _is_older_life(self, instance: str, state: StreamState, now_s: float) -> bool:
        stream = self.streams.get((instance, state.rank))
        if stream is None or state.epoch >= stream.cursor.epoch:
            return False
        # A relay whose clock runs behind takes over once the later epoch's owner is silent.
        if now_s - stream.heartbeat_s > self.config.takeover_after_s:
            self.counters.takeovers += 1
            self._adopt(stream, state)
            return False
        return True

    def _begin_epoch(self, stream: Stream, epoch: int) -> None:
        if stream.cursor.epoch >= 0:
            self.counters.new_epochs += 1
        self.index.clear(stream.source)
        stream.begin(epoch)

    def _adopt(self, stream: Stream, state: StreamState) -> None:
        """Begins an epoch known from a heartbeat: what it sent before now was missed."""
        self._begin_epoch(stream, state.epoch)
        stream.synced = state.seq < 0

    def _compare(self, stream: Stream, state: StreamState, now_s: float) -> list[Effect]:
        if state.epoch > stream.cursor.epoch:
            self._adopt(stream, state)
        if not stream.synced:
            return self._want_snapshot(stream, now_s)
        if state.seq > stream.cursor.seq:
            if stream.behind_since_s is None:
                stream.behind_since_s = now_s
            return []
        if state.seq == stream.cursor.seq:
            stream.behind_since_s = None
            return self._verify(stream, state, now_s)
        return []

    def _verify(self, stream: Stream, state: StreamState, now_s: float) -> list[Effect]:
        if state.digest == self.index.digest(stream.source):
            stream.proven_s = now_s
            return []
        self.counters.drifts += 1
        stream.synced = False
        return self._want_snapshot(stream, now_s)

    def _is_behind_too_long(self, stream: Stream, now_s: float) -> bool:
        since_s = stream.behind_since_s
        return stream.synced and since_s is not None and now_s - since_s > self.config.tail_wait_s

    def _apply(self, stream: Stream, batch: Batch, now_s: float) -> None:
        for op in batch.ops:
            self._apply_op(stream.source, op)
        stream.advance(batch, now_s)
        self.counters.applied_batches += 1

    def _apply_op(self, source: int, op: Op) -> None:
        if isinstance(op, Clear):
            self.index.clear(source, None if op.tier is None else tier_of(op.tier))
            return
        try:
            hashes = unpack_hashes(op.hashes)
        except ValueError:
            self.counters.malformed_ops += 1
            return
        if isinstance(op, Register):
            self.index.register(source, tier_of(op.tier), hashes)
        else:
            self.index.evict(source, tier_of(op.tier), hashes)

    def _buffer(self, stream: Stream, batch: Batch) -> None:
        stream.synced = False
        if len(stream.buffer) >= self.config.max_buffered_batches:
            self.counters.buffer_overflows += 1
            stream.buffer.clear()
        stream.buffer[batch.seq] = batch

    def _want_snapshot(self, stream: Stream, now_s: float) -> list[Effect]:
        if stream.fetching or now_s < stream.retry_s:
            return []
        stream.fetching = True
        self.counters.snapshots_requested += 1
        return [FetchSnapshot(*stream.key)]

    def _retry_later(self, stream: Stream, now_s: float) -> list[Effect]:
        stream.failures += 1
        stream.retry_s = now_s + self.config.retry_delay_s(stream.failures)
        return []

    def _replace(self, stream: Stream, snapshot: Snapshot) -> None:
        if snapshot.epoch > stream.cursor.epoch:
            self._begin_epoch(stream, snapshot.epoch)
        self.index.clear(stream.source)
        for op in snapshot.ops:
            self._apply_op(stream.source, op)
        stream.at(snapshot.epoch, snapshot.seq)

    def _drain_buffer(self, stream: Stream, now_s: float) -> list[Effect]:
        buffered, stream.buffer = stream.buffer, {}
        for seq in sorted(buffered):
            step = stream.cursor.classify(buffered[seq].epoch, seq)
            if step is Step.NEXT and stream.synced:
                self._apply(stream, buffered[seq], now_s)
            elif step is Step.GAP:
                self._buffer(stream, buffered[seq])
        return [] if stream.synced else self._retry_later(stream, now_s)

    def _forget(self, instance: str) -> list[Effect]:
        self.heartbeats.pop(instance, None)
        for key in [key for key in self.streams if key[0] == instance]:
            stream = self.streams.pop(key)
            del self._by_source[stream.source]
            self.index.close_source(stream.source)
        self.counters.forgotten_instances += 1
        return [Forgotten(instance)]
