"""Ingestion keeps the index equal to what owners hold, whatever the bus does to their messages."""

import random

import pytest

from indexer.core.blocks import pack_hashes
from indexer.core.events import Batch, Clear, Evict, Heartbeat, Register, StreamState
from indexer.core.ingest import FetchSnapshot, Forgotten, Ingest, Snapshot
from indexer.core.streams import IngestConfig
from indexer.core.tiers import Tier, digest_term

BLOCK_TOKENS = 16


class Owner:
    """One engine rank with its relay: holds blocks, sends batches, answers for its content."""

    def __init__(self, instance: str = "a", epoch: int = 1) -> None:
        self.instance, self.epoch, self.seq = instance, epoch, -1
        self.held: set[int] = set()

    def restart(self, epoch: int | None = None) -> None:
        self.epoch, self.seq, self.held = epoch or self.epoch + 1, -1, set()

    def register(self, *blocks: int) -> Batch:
        self.held |= set(blocks)
        return self._batch([Register("gpu", pack_hashes(blocks))])

    def evict(self, *blocks: int) -> Batch:
        self.held -= set(blocks)
        return self._batch([Evict("gpu", pack_hashes(blocks))])

    def clear(self) -> Batch:
        self.held = set()
        return self._batch([Clear()])

    def _batch(self, ops) -> Batch:
        self.seq += 1
        return Batch(self.instance, 0, self.epoch, self.seq, 0.0, ops)

    def digest(self) -> int:
        digest = 0
        for block in self.held:
            digest ^= digest_term(Tier.GPU, block)
        return digest

    def heartbeat(self, **changes) -> Heartbeat:
        state = StreamState(0, self.epoch, self.seq, len(self.held), self.digest())
        url, name = f"http://{self.instance}", self.instance
        return Heartbeat(name, "p", 0.0, [state], url, "m", BLOCK_TOKENS, **changes)

    def snapshot(self) -> Snapshot:
        ops = [Register("gpu", pack_hashes(sorted(self.held)))]
        held = len(self.held)
        return Snapshot(self.instance, 0, self.epoch, self.seq, held, self.digest(), ops)


def content(ingest: Ingest, instance: str = "a") -> set[int]:
    stream = ingest.streams[instance, 0]
    return set(ingest.index.held(stream.source, Tier.GPU))


@pytest.fixture
def ingest() -> Ingest:
    return Ingest(IngestConfig())


@pytest.fixture
def owner() -> Owner:
    return Owner()


FETCH = [FetchSnapshot("a", 0)]


def test_a_stream_followed_from_its_start_needs_no_snapshot(ingest, owner):
    for batch in (owner.register(1, 2, 3), owner.evict(2), owner.register(2, 4)):
        assert ingest.on_batch(batch, 0.0) == []
    assert content(ingest) == owner.held == {1, 2, 3, 4}
    assert ingest.on_heartbeat(owner.heartbeat(), 0.0) == []
    assert ingest.counters.drifts == 0


def test_duplicates_change_nothing(ingest, owner):
    first, second = owner.register(1), owner.evict(1)
    for batch in (first, second, first, second):
        assert ingest.on_batch(batch, 0.0) == []
    assert content(ingest) == set()
    assert ingest.counters.duplicate_batches == 2


def test_a_gap_asks_once_for_a_snapshot_and_later_batches_wait_for_it(ingest, owner):
    ingest.on_batch(owner.register(1, 2), 0.0)
    owner.evict(1)  # lost
    assert ingest.on_batch(owner.register(3), 0.0) == FETCH
    snapshot = owner.snapshot()
    assert ingest.on_batch(owner.register(4), 0.0) == []
    assert ingest.on_batch(owner.evict(2), 0.0) == []
    assert ingest.on_snapshot(snapshot, 0.1) == []
    assert content(ingest) == owner.held == {3, 4}
    assert (ingest.counters.gaps, ingest.counters.snapshots_requested) == (1, 1)


def test_a_router_that_joins_late_starts_from_a_snapshot(ingest, owner):
    owner.register(1, 2, 3)
    assert ingest.on_heartbeat(owner.heartbeat(), 0.0) == FETCH
    assert ingest.on_snapshot(owner.snapshot(), 0.1) == []
    assert content(ingest) == {1, 2, 3}
    assert ingest.on_batch(owner.register(4), 0.2) == []
    assert content(ingest) == {1, 2, 3, 4}


def test_a_snapshot_older_than_what_waits_is_asked_for_again(ingest, owner):
    owner.register(1)
    stale = owner.snapshot()
    owner.register(2)
    owner.register(3)
    assert ingest.on_batch(owner.register(4), 0.0) == FETCH
    assert ingest.on_snapshot(stale, 0.1) == []
    assert ingest.due(1.0) == FETCH
    assert ingest.on_snapshot(owner.snapshot(), 1.1) == []
    assert content(ingest) == {1, 2, 3, 4}


def test_a_snapshot_that_does_not_add_up_is_not_trusted(ingest, owner):
    owner.register(1, 2)
    ingest.on_heartbeat(owner.heartbeat(), 0.0)
    wrong = Snapshot("a", 0, owner.epoch, owner.seq, 2, 12345, owner.snapshot().ops)
    assert ingest.on_snapshot(wrong, 0.1) == []
    assert ingest.counters.bad_snapshots == 1
    assert ingest.due(5.0) == FETCH


def test_failed_snapshots_are_retried_after_growing_pauses(ingest, owner):
    owner.register(1)
    assert ingest.on_heartbeat(owner.heartbeat(), 0.0) == FETCH
    now_s, pauses = 0.0, []
    for _ in range(4):
        assert ingest.on_snapshot_failed("a", 0, now_s) == []
        pause = next(p / 10 for p in range(1000) if ingest.due(now_s + p / 10) == FETCH)
        pauses.append(pause)
        now_s += pause
        ingest.on_heartbeat(owner.heartbeat(), now_s)
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] <= ingest.config.retry_max_s


def test_a_lost_last_batch_shows_within_a_heartbeat(ingest, owner):
    ingest.on_batch(owner.register(1), 0.0)
    owner.register(2)  # lost, and nothing follows
    assert ingest.on_heartbeat(owner.heartbeat(), 1.0) == []
    assert ingest.due(1.2) == []
    assert ingest.due(1.6) == FETCH
    ingest.on_snapshot(owner.snapshot(), 1.7)
    assert content(ingest) == {1, 2}
    assert ingest.counters.lost_tails == 1


def test_a_heartbeat_that_overtakes_its_batch_is_no_loss(ingest, owner):
    ingest.on_batch(owner.register(1), 0.0)
    late = owner.register(2)
    ingest.on_heartbeat(owner.heartbeat(), 1.0)
    ingest.on_batch(late, 1.1)
    assert ingest.due(5.0) == []
    assert ingest.counters.lost_tails == 0


def test_silent_drift_is_found_by_the_digest(ingest, owner):
    ingest.on_batch(owner.register(1, 2), 0.0)
    owner.held.discard(2)
    assert ingest.on_heartbeat(owner.heartbeat(), 1.0) == FETCH
    ingest.on_snapshot(owner.snapshot(), 1.1)
    assert content(ingest) == {1}
    assert ingest.counters.drifts == 1


def test_a_restarted_engine_is_empty_at_once_and_its_past_is_fenced(ingest, owner):
    ingest.on_batch(owner.register(1, 2), 0.0)
    late = Batch("a", 0, owner.epoch, 1, 0.0, [Register("gpu", pack_hashes([9]))])
    owner.restart()
    assert ingest.on_batch(owner.register(5), 0.1) == []
    assert content(ingest) == {5}
    assert ingest.on_batch(late, 0.2) == []
    assert content(ingest) == {5}
    assert (ingest.counters.fenced_batches, ingest.counters.new_epochs) == (1, 1)


def test_a_restart_seen_first_in_a_heartbeat_empties_the_stream(ingest, owner):
    ingest.on_batch(owner.register(1, 2), 0.0)
    owner.restart()
    assert ingest.on_heartbeat(owner.heartbeat(), 0.1) == []
    assert content(ingest) == set()
    owner.register(7)
    assert ingest.on_heartbeat(owner.heartbeat(), 0.2) == []
    assert ingest.due(1.0) == FETCH


def test_a_snapshot_of_an_ended_life_is_refused(ingest, owner):
    owner.register(1)
    ingest.on_heartbeat(owner.heartbeat(), 0.0)
    old = owner.snapshot()
    owner.restart()
    ingest.on_batch(owner.register(2), 0.1)
    ingest.on_snapshot(old, 0.2)
    assert content(ingest) == {2}
    assert ingest.counters.fenced_snapshots == 1


def test_of_two_relays_for_one_instance_the_later_epoch_counts(ingest):
    first, second = Owner(epoch=10), Owner(epoch=20)
    ingest.on_batch(first.register(1), 0.0)
    ingest.on_batch(second.register(2), 0.0)
    for tick in range(1, 5):
        ingest.on_heartbeat(second.heartbeat(), tick)
        ingest.on_heartbeat(first.heartbeat(), tick)
        ingest.on_batch(first.register(10 + tick), tick)
        assert content(ingest) == {2}
    assert ingest.counters.fenced_heartbeats == 4


def test_a_relay_whose_clock_runs_behind_takes_over_once_the_other_is_silent(ingest):
    ahead, behind = Owner(epoch=60_000_000), Owner(epoch=5)
    ingest.on_batch(ahead.register(1), 0.0)
    ingest.on_heartbeat(ahead.heartbeat(), 0.0)
    behind.register(2)
    assert ingest.on_heartbeat(behind.heartbeat(), 1.0) == []
    assert ingest.on_heartbeat(behind.heartbeat(), 3.5) == FETCH
    ingest.on_snapshot(behind.snapshot(), 3.6)
    assert content(ingest) == {2}
    assert ingest.counters.takeovers == 1


def test_waiting_batches_are_bounded(owner):
    ingest = Ingest(IngestConfig(max_buffered_batches=3))
    owner.register(1)
    for block in range(2, 12):
        ingest.on_batch(owner.register(block), 0.0)
        assert len(ingest.streams["a", 0].buffer) <= 3
    assert ingest.counters.buffer_overflows > 0
    ingest.on_snapshot(owner.snapshot(), 0.1)
    assert content(ingest) == owner.held


def test_the_number_of_streams_is_bounded():
    ingest = Ingest(IngestConfig(max_streams=2))
    for name in "abc":
        ingest.on_batch(Owner(name).register(1), 0.0)
    assert set(ingest.streams) == {("a", 0), ("b", 0)}
    assert ingest.counters.refused_streams == 1


def test_a_silent_instance_loses_confidence_then_its_score_then_everything(ingest, owner):
    ingest.on_batch(owner.register(1), 0.0)
    ingest.on_heartbeat(owner.heartbeat(), 0.0)

    def confidence(now_s):
        found = ingest.match([1], BLOCK_TOKENS, now_s)
        return found[0].confidence if found else None

    assert confidence(1.0) == 1.0
    assert confidence(12.0) == pytest.approx(0.5)
    assert confidence(22.0) == pytest.approx(0.25)
    assert confidence(31.0) is None
    assert ingest.due(100.0) == []
    assert ingest.due(121.0) == [Forgotten("a")]
    assert ingest.index.blocks(Tier.GPU) == 0


def test_without_the_bus_silence_is_not_held_against_anybody(ingest, owner):
    ingest.on_batch(owner.register(1), 0.0)
    ingest.on_heartbeat(owner.heartbeat(), 0.0)
    ingest.on_bus_down(1.0)
    assert ingest.due(10_000.0) == []
    ingest.on_bus_up(10_000.0)
    assert ingest.due(10_001.0) == []
    assert ingest.on_heartbeat(owner.heartbeat(), 10_001.0) == []
    assert ingest.match([1], BLOCK_TOKENS, 10_001.0)[0].confidence == 1.0


def test_an_instance_that_says_goodbye_is_forgotten_at_once(ingest, owner):
    ingest.on_batch(owner.register(1), 0.0)
    ingest.on_heartbeat(owner.heartbeat(), 0.0)
    assert ingest.on_heartbeat(owner.heartbeat(leaving=True), 1.0) == [Forgotten("a")]
    assert ingest.streams == {}
    assert ingest.heartbeats == {}


def test_another_block_size_is_never_matched(ingest, owner):
    ingest.on_batch(owner.register(1), 0.0)
    ingest.on_heartbeat(owner.heartbeat(), 0.0)
    assert ingest.match([1], 32, 0.0) == []
    assert ingest.match([1], BLOCK_TOKENS, 0.0)[0].depth_blocks == (1, 1, 1, 1)


def test_a_torn_hash_list_is_counted_and_costs_only_its_op(ingest):
    ops = [Register("gpu", b"123"), Register("gpu", pack_hashes([4]))]
    ingest.on_batch(Batch("a", 0, 1, 0, 0.0, ops), 0.0)
    assert content(ingest) == {4}
    assert ingest.counters.malformed_ops == 1


class FaultyBus:
    """Carries one owner's messages badly: loses, doubles and delays them; snapshots fail at times."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ingest, self.owner = Ingest(IngestConfig()), Owner()
        self.now_s = 0.0
        self.faulty = True
        self._delayed: list[Batch | Heartbeat] = []
        self._wanted: list[FetchSnapshot] = []

    def chance(self, share: float) -> bool:
        return self.faulty and self.rng.random() < share

    def change(self) -> None:
        if self.chance(0.02):
            self.owner.restart()
        block = self.rng.randrange(1, 30)
        changes = [lambda: self.owner.register(block, block + 1), lambda: self.owner.evict(block)]
        if self.rng.random() < 0.1:
            changes.append(self.owner.clear)
        self.send(self.rng.choice(changes)())

    def send(self, message: Batch | Heartbeat) -> None:
        if self.chance(0.15):
            self._delayed.append(message)
        elif not self.chance(0.15):
            self._deliver(message)
        if self.chance(0.1):
            self._deliver(message)

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        while self._delayed and self.rng.random() < 0.3:
            self._deliver(self._delayed.pop(self.rng.randrange(len(self._delayed))))
        self._wanted += self.ingest.due(self.now_s)
        while self._wanted and not self.chance(0.4):
            self._answer(self._wanted.pop())

    def _deliver(self, message: Batch | Heartbeat) -> None:
        handle = self.ingest.on_batch if isinstance(message, Batch) else self.ingest.on_heartbeat
        self._wanted += handle(message, self.now_s)

    def _answer(self, wanted: FetchSnapshot) -> None:
        if self.chance(0.3):
            failed = self.ingest.on_snapshot_failed(wanted.instance, wanted.rank, self.now_s)
            self._wanted += failed
        else:
            self._wanted += self.ingest.on_snapshot(self.owner.snapshot(), self.now_s)


@pytest.mark.parametrize("seed", range(60))
def test_any_mix_of_loss_duplication_reordering_and_restarts_ends_equal_to_the_truth(seed):
    bus = FaultyBus(seed)
    for step in range(300):
        bus.faulty = step < 260
        bus.change()
        if step % 10 == 0:
            bus.send(bus.owner.heartbeat())
        bus.advance(0.1)
    for _ in range(20):
        bus.send(bus.owner.heartbeat())
        bus.advance(0.5)
    assert content(bus.ingest) == bus.owner.held
    assert bus.ingest.streams["a", 0].synced
