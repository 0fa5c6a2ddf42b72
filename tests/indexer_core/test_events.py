"""The wire survives what other versions and broken senders put on it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.core import events
from indexer.core.blocks import pack_hashes
from indexer.core.events import Batch, Clear, Evict, Heartbeat, Register, StreamState, WireError

BATCH = Batch(
    "10.0.0.1:8000",
    0,
    1_764_000_000_000_000,
    7,
    1.5,
    [Register("gpu", pack_hashes([1, 2])), Evict("host", pack_hashes([3])), Clear("disk"), Clear()],
)


def test_a_batch_comes_back_as_it_was():
    assert events.decode_batch(events.encode(BATCH)) == (BATCH, 0)


def test_unknown_ops_and_tiers_are_counted_and_the_rest_of_the_batch_is_kept():
    wire = msgspec.msgpack.decode(events.encode(BATCH))
    wire["ops"].insert(1, {"op": "promote", "tier": "gpu", "hashes": b""})
    wire["ops"].insert(3, {"op": "register", "tier": "tape", "hashes": pack_hashes([9])})
    wire["ops"].append(42)
    batch, skipped = events.decode_batch(msgspec.msgpack.encode(wire))
    assert (batch, skipped) == (BATCH, 3)


def test_fields_of_later_versions_are_passed_over():
    wire = msgspec.msgpack.decode(events.encode(BATCH))
    wire["colour"] = "blue"
    wire["ops"][0]["priority"] = 3
    assert events.decode_batch(msgspec.msgpack.encode(wire)) == (BATCH, 0)


def test_a_newer_wire_version_is_refused_by_name():
    with pytest.raises(WireError, match="wire version 2 is newer than 1"):
        events.decode_batch(events.encode(msgspec.structs.replace(BATCH, v=2)))


@pytest.mark.parametrize("missing", ["instance", "rank", "epoch", "seq", "sent_at", "ops"])
def test_a_missing_field_is_named(missing):
    wire = msgspec.msgpack.decode(events.encode(BATCH))
    del wire[missing]
    with pytest.raises(WireError, match=missing):
        events.decode_batch(msgspec.msgpack.encode(wire))


@given(st.binary(max_size=200))
def test_garbage_is_a_wire_error_and_nothing_else(data):
    for decode in (
        events.decode_batch,
        events.decode_heartbeat,
        events.decode_snapshot_chunk,
        events.decode_snapshot_request,
    ):
        with pytest.raises(WireError):
            decode(data)


def test_a_heartbeat_without_optional_fields_is_understood():
    wire = {
        "instance": "a",
        "pool": "p",
        "sent_at": 1.0,
        "streams": [{"rank": 0, "epoch": 1, "seq": -1, "count": 0, "digest": 2**64 - 1}],
        "url": "http://a",
        "model": "m",
        "block_tokens": 16,
    }
    heartbeat = events.decode_heartbeat(msgspec.msgpack.encode(wire))
    assert heartbeat == Heartbeat(
        "a", "p", 1.0, [StreamState(0, 1, -1, 0, 2**64 - 1)], "http://a", "m", 16
    )
    assert heartbeat.streams[0].running is None


def test_block_operations_are_counted_by_hash():
    assert events.hash_count(BATCH.ops) == 3
