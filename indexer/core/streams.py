"""State of one event stream, and the knobs and counters of ingestion."""

from typing import Annotated

import msgspec

from indexer.core.cursor import Cursor
from indexer.core.events import Batch

StreamKey = tuple[str, int]  # (instance, rank)

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class IngestConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How patient ingestion is. Defaults suit heartbeats once a second."""

    heartbeat_s: Seconds = 1.0  # expected period of heartbeats
    tail_wait_s: Seconds = 0.5  # how long a heartbeat may be ahead of the batches it speaks of
    half_life_s: Seconds = 10.0  # of confidence once two heartbeats are overdue
    takeover_after_s: Seconds = 3.0  # silence after which an older epoch's owner may take over
    retire_after_s: Seconds = 30.0  # unproven for so long: kept, not scored
    drop_after_s: Seconds = 120.0  # silent for so long: dropped
    retry_min_s: Seconds = 0.2  # first pause after a failed snapshot; doubles
    retry_max_s: Seconds = 5.0
    max_buffered_batches: Annotated[int, msgspec.Meta(ge=1)] = 4096  # per stream
    max_streams: Annotated[int, msgspec.Meta(ge=1)] = 16_384

    def retry_delay_s(self, failures: int) -> float:
        return float(min(self.retry_max_s, self.retry_min_s * 2 ** min(failures - 1, 16)))


class IngestCounters(msgspec.Struct):
    """Everything that ingestion refused, repaired or lost, since start."""

    applied_batches: int = 0
    duplicate_batches: int = 0
    fenced_batches: int = 0
    fenced_heartbeats: int = 0
    fenced_snapshots: int = 0
    takeovers: int = 0
    gaps: int = 0
    lost_tails: int = 0  # heartbeats spoke of batches that never came
    drifts: int = 0  # same position, different content
    new_epochs: int = 0
    buffer_overflows: int = 0
    malformed_ops: int = 0
    refused_streams: int = 0
    snapshots_requested: int = 0
    snapshots_applied: int = 0
    snapshots_failed: int = 0
    bad_snapshots: int = 0
    forgotten_instances: int = 0


class Stream:
    """One (instance, rank): where its events have got to and how far its content is proven."""

    def __init__(self, key: StreamKey, source: int, now_s: float) -> None:
        self.key = key
        self.source = source  # its number in the index
        self.cursor = Cursor(-1, -1)  # older than any epoch
        self.synced = False
        self.fetching = False
        self.buffer: dict[int, Batch] = {}  # by seq, all of the cursor's epoch
        self.failures = 0
        self.retry_s = now_s
        self.heartbeat_s = now_s
        self.proven_s = now_s  # when content was last known to be complete
        self.behind_since_s: float | None = None
        self.block_tokens: int | None = None
        self.event_lag_s: float | None = None  # by the sender's wall clock, last batch

    def begin(self, epoch: int) -> None:
        """Starts an epoch: empty, and complete as long as its batches come from 0 on."""
        self.cursor = Cursor(epoch, -1)
        self.buffer = {}
        self.synced = True
        self.behind_since_s = None

    def at(self, epoch: int, seq: int) -> None:
        self.cursor = Cursor(epoch, seq)
        self.buffer = {seq_: b for seq_, b in self.buffer.items() if b.epoch == epoch}
        self.behind_since_s = None

    def advance(self, batch: Batch, now_s: float) -> None:
        self.cursor = Cursor(batch.epoch, batch.seq)
        if self.behind_since_s is None:
            self.proven_s = now_s
        else:
            self.behind_since_s = None

    def confidence(self, config: IngestConfig, now_s: float) -> float:
        """1 while proofs keep coming, then halved every `half_life_s`.

        With a hole of unknown size in the stream, until its snapshot arrives, half of that.
        """
        overdue_s = max(0.0, now_s - self.proven_s - 2 * config.heartbeat_s)
        return float(0.5 ** (overdue_s / config.half_life_s)) * (1.0 if self.synced else 0.5)
