"""The outgoing event stream of one (instance, rank): epochs, sequence numbers and message sizes."""

from collections.abc import Iterable
from itertools import groupby
from typing import Final

from indexer.core.engine_events import EngineEvent
from indexer.core.events import Batch, Clear, Op, SnapshotChunk, StreamState
from indexer.core.held import HeldBlocks

DEFAULT_MAX_BYTES: Final = 256 * 1024
_MIN_MAX_BYTES: Final = 4096
_ENVELOPE_BYTES: Final = 512  # field names and numbers of a message, without instance and ops
_OP_BYTES: Final = 64  # field names and lengths of an op, without its hashes


class EpochSource:
    """Numbers for epochs: the wall clock, but never one that was given out before."""

    def __init__(self) -> None:
        self._last = -1

    def next(self, now_us: int) -> int:
        """An epoch for `now_us` (wall clock, microseconds), greater than any before."""
        self._last = max(now_us, self._last + 1)
        return self._last


class OutgoingStream:
    """Applies an engine's events and numbers what they change.

    Content and sequence number move together, so `state` and `snapshot` always describe the
    content right after batch `seq`.

    Args:
        instance: name of the engine.
        rank: its data parallel rank.
        held: its content, empty.
        epoch: from an `EpochSource`.
        max_bytes: upper bound of an encoded message, at least 4096.

    Raises:
        ValueError: `max_bytes` is too small.
    """

    def __init__(
        self,
        instance: str,
        rank: int,
        held: HeldBlocks,
        epoch: int,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        if max_bytes < _MIN_MAX_BYTES:
            raise ValueError(f"max_bytes must be at least {_MIN_MAX_BYTES}, got {max_bytes}")
        self.instance = instance
        self.rank = rank
        self.held = held
        self.epoch = epoch
        self.seq = -1  # last batch made in this epoch
        self._room = max_bytes - _ENVELOPE_BYTES - len(instance.encode())

    def begin_epoch(self, epoch: int) -> None:
        """Forgets all content and starts over at batch 0."""
        self.epoch = epoch
        self.seq = -1
        self.held.reset()

    def feed(self, events: Iterable[EngineEvent], now_s: float) -> list[Batch]:
        """Batches that say what these events changed; none when nothing did.

        `now_s` is the wall clock in seconds.
        """
        ops: list[Op] = []
        for event in events:
            ops += self.held.apply(event)
        return [self._batch(part, now_s) for part in split_ops(merge_ops(ops), self._room)]

    def _batch(self, ops: list[Op], now_s: float) -> Batch:
        self.seq += 1
        return Batch(self.instance, self.rank, self.epoch, self.seq, now_s, ops)

    def state(self) -> StreamState:
        """For the heartbeat; load and lag are the caller's to add."""
        return StreamState(self.rank, self.epoch, self.seq, self.held.count, self.held.digest)

    def snapshot(self) -> list[SnapshotChunk]:
        """The whole content, at least one chunk."""
        registers = self.held.snapshot_ops(self._room - _OP_BYTES)
        parts = [[register] for register in registers] or [[]]
        return [
            SnapshotChunk(
                self.instance,
                self.rank,
                self.epoch,
                self.seq,
                chunk,
                len(parts),
                self.held.count,
                self.held.digest,
                part,
            )
            for chunk, part in enumerate(parts)
        ]


def merge_ops(ops: Iterable[Op]) -> list[Op]:
    """The same changes with neighbours of one kind and tier joined."""
    merged: list[Op] = []
    for _, run in groupby(ops, key=lambda op: (type(op), op.tier)):
        first, *rest = run
        if rest and not isinstance(first, Clear):
            merged.append(type(first)(first.tier, b"".join(map(_hashes, (first, *rest)))))
        else:
            merged.append(first)
    return merged


def _hashes(op: Op) -> bytes:
    return b"" if isinstance(op, Clear) else op.hashes


def split_ops(ops: Iterable[Op], room: int) -> list[list[Op]]:
    """The same ops in order, in lists that need at most `room` encoded bytes each."""
    parts: list[list[Op]] = []
    left = 0
    for op in ops:
        for piece, size in _pieces(op, room - _OP_BYTES):
            if size > left:
                parts.append([])
                left = room
            parts[-1].append(piece)
            left -= size
    return parts


def _pieces(op: Op, max_hash_bytes: int) -> list[tuple[Op, int]]:
    """`op` in pieces of bounded size, each with its size."""
    if isinstance(op, Clear):
        return [(op, _OP_BYTES)]
    step = max_hash_bytes // 8 * 8
    cuts = (op.hashes[start : start + step] for start in range(0, len(op.hashes), step))
    return [(type(op)(op.tier, cut), _OP_BYTES + len(cut)) for cut in cuts]
