import pytest

from indexer.core import events
from indexer.core.engine_events import Cleared, Removed, Stored
from indexer.core.events import Clear, Evict, Register
from indexer.core.held import HeldBlocks
from indexer.core.outgoing import EpochSource, OutgoingStream, merge_ops, split_ops


def new_stream(**kwargs):
    return OutgoingStream("inst", 1, HeldBlocks(1, "m"), 7, **kwargs)


def store(first, count):
    hashes = list(range(first, first + count))
    return Stored(hashes, first - 1 if first > 1 else None, hashes, 1)


def test_epochs_only_grow():
    source = EpochSource()
    assert [source.next(now) for now in (10, 10, 5, 20)] == [10, 11, 12, 20]


def test_one_engine_batch_is_one_batch():
    stream = new_stream()
    (batch,) = stream.feed([store(1, 2), store(3, 2), Removed([4])], 3.5)
    assert (batch.instance, batch.rank, batch.epoch, batch.seq) == ("inst", 1, 7, 0)
    assert batch.sent_at == 3.5
    assert [(type(op), len(op.hashes)) for op in batch.ops] == [(Register, 32), (Evict, 8)]


def test_no_change_no_batch():
    stream = new_stream()
    stream.feed([store(1, 2)], 0.0)
    assert stream.feed([store(1, 2), Removed([99])], 0.0) == []
    assert stream.state().seq == 0


def test_large_changes_are_split_below_the_limit():
    stream = new_stream(max_bytes=4096)
    batches = stream.feed([store(1, 3000), Cleared(), store(1, 3000)], 0.0)
    assert [batch.seq for batch in batches] == list(range(len(batches)))
    assert max(len(events.encode(batch)) for batch in batches) <= 4096
    assert sum(events.hash_count(batch.ops) for batch in batches) == 6000
    assert sum(isinstance(op, Clear) for batch in batches for op in batch.ops) == 1


def test_state_and_snapshot_describe_the_content():
    stream = new_stream(max_bytes=4096)
    (empty,) = stream.snapshot()
    assert (empty.seq, empty.chunks, empty.count, empty.ops) == (-1, 1, 0, [])
    stream.feed([store(1, 2000)], 0.0)
    chunks = stream.snapshot()
    state = stream.state()
    assert len(chunks) > 1
    assert max(len(events.encode(chunk)) for chunk in chunks) <= 4096
    assert {(c.epoch, c.seq, c.chunks, c.count, c.digest) for c in chunks} == {
        (7, state.seq, len(chunks), 2000, state.digest)
    }
    assert sum(events.hash_count(chunk.ops) for chunk in chunks) == 2000


def test_new_epoch_is_empty_and_starts_at_zero():
    stream = new_stream()
    stream.feed([store(1, 5)], 0.0)
    stream.begin_epoch(8)
    state = stream.state()
    assert (state.epoch, state.seq, state.count, state.digest) == (8, -1, 0, 0)
    (batch,) = stream.feed([store(1, 5)], 0.0)
    assert (batch.epoch, batch.seq) == (8, 0)


def test_neighbours_are_merged_and_nothing_else():
    one, two = b"1" * 8, b"2" * 8
    ops = [
        Register("gpu", one),
        Register("gpu", two),
        Register("host", one),
        Evict("host", one),
        Clear(),
        Clear(),
        Evict("host", two),
    ]
    assert merge_ops(ops) == [
        Register("gpu", one + two),
        Register("host", one),
        Evict("host", one),
        Clear(),
        Evict("host", two),
    ]


def test_split_keeps_order_and_bytes():
    ops = [Register("gpu", bytes(range(200)) + bytes(200)), Clear(), Evict("gpu", b"x" * 80)]
    parts = split_ops(ops, 200)
    flat = [op for part in parts for op in part]
    assert b"".join(op.hashes for op in flat if isinstance(op, Register)) == ops[0].hashes
    assert flat[-2:] == ops[1:]


def test_limit_must_leave_room():
    with pytest.raises(ValueError, match="max_bytes"):
        new_stream(max_bytes=100)
