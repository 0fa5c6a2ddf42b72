import msgspec
import pytest
from relay_fakes import END, cleared, payload, removed, stored

from indexer.core.engine_events import (
    END_OF_REPLAY,
    BatchDecoder,
    Cleared,
    EngineEventError,
    Removed,
    Stored,
    split_frames,
)
from indexer.core.tiers import Tier

encode = msgspec.msgpack.encode


def decode(*engine_events, **kwargs):
    return BatchDecoder().decode(payload(*engine_events, **kwargs))


def only(*engine_events):
    batch = decode(*engine_events)
    assert batch.skipped == {}
    (event,) = batch.events
    return event


OLD_STORED = [
    # vLLM 0.9.0 up to 0.23, and SGLang up to 0.5.19, by the number of fields they had.
    ["BlockStored", [7], None, [1, 2], 2, None],
    ["BlockStored", [7], None, [1, 2], 2, None, "GPU"],
    ["BlockStored", [7], None, [1, 2], 2, None, "GPU", None],
    ["BlockStored", [7], None, [1, 2], 2, None, "GPU", None, None],
    ["BlockStored", [7], None, [1, 2], 2, None, "GPU", None, None, 0],
    ["BlockStored", [7], None, [1, 2], 2, None, "GPU", None, None, 0, "full_attention", None],
    ["BlockStored", [7], None, [1, 2], 2, None, "GPU", None, [None], 0, "unknown", 8, "x", {}],
]


@pytest.mark.parametrize("event", OLD_STORED, ids=len)
def test_positional_store_of_every_length(event):
    assert only(event) == Stored([7], None, [1, 2], 2)


def test_map_store_with_all_fields_and_unknown_ones():
    event = stored(
        [2**64 - 1, -(2**63)],
        5,
        [1, 2, 3, 4],
        2,
        medium="CPU_PINNED",
        lora_id=None,
        lora_name="adapter",
        cache_salt="salt",
        session_id="s",
        group_idx=1,
        kv_cache_spec_kind="mla_attention",
        lookahead_token_ids=[[1], [2]],
        from_the_future={"a": 1},
    )
    assert only(event) == Stored(
        [2**64 - 1, -(2**63)], 5, [1, 2, 3, 4], 2, Tier.HOST, "adapter", "salt", (), 1
    )


def test_omitted_optional_fields():
    event = {"type": "BlockStored", "block_hashes": [7], "token_ids": [1, 2], "block_size": 2}
    assert only(event) == Stored([7], None, [1, 2], 2)


@pytest.mark.parametrize("as_map", [True, False])
def test_bytes_hashes_stay_opaque(as_map):
    event = only(stored([b"\x01" * 32], b"\x02" * 32, [1, 2], 2, as_map=as_map))
    assert (event.hashes, event.parent) == ([b"\x01" * 32], b"\x02" * 32)


@pytest.mark.parametrize("as_map", [True, False])
def test_remove_and_clear(as_map):
    batch = decode(removed([7, 8], as_map=as_map, medium="GPU"), cleared(as_map=as_map))
    assert batch.events == [Removed([7, 8]), Cleared()]


def test_array_removal_with_group():
    assert only(["BlockRemoved", [7], "cpu", 3]) == Removed([7], Tier.HOST, 3)


@pytest.mark.parametrize(
    ("medium", "locality", "tier"),
    [
        (None, None, Tier.GPU),
        ("GPU", None, Tier.GPU),
        ("cpu", None, Tier.HOST),
        ("CPU_PINNED", None, Tier.HOST),
        ("STORAGE", "LOCAL", Tier.DISK),
        ("DISK", None, Tier.DISK),
        ("EXTERNAL", None, Tier.DISK),
        ("STORAGE", "REMOTE", Tier.REMOTE),
    ],
)
def test_media(medium, locality, tier):
    assert only(removed([1], medium=medium, locality=locality)).tier is tier
    assert only(stored([1], None, [1], 1, medium=medium, locality=locality)).tier is tier


def test_one_odd_event_does_not_cost_the_batch():
    batch = decode(
        stored([1], None, [1], 1),
        stored([2], 1, [[2, 3]], 1),
        {"type": "Novelty", "x": 1},
        ["Novelty", 1],
        {"type": "BlockStored", "block_hashes": "no"},
        ["BlockStored", [1], None, [[1, 2]], 1, None],
        stored([3], None, [1], 1, medium="TAPE"),
        7,
        [],
        removed([1], as_map=False),
    )
    assert batch.events == [Stored([1], None, [1], 1), Removed([1])]
    assert batch.skipped == {"bigram": 2, "unknown_type": 4, "malformed": 1, "medium": 1}


def test_batches_of_two_and_more_fields():
    decoder = BatchDecoder()
    assert decoder.decode(encode([1.5, []])).rank is None
    assert decoder.decode(encode([1.5, [cleared()], 3])).rank == 3
    assert decoder.decode(encode([1, [cleared(as_map=False)], None, "more"])).events == [Cleared()]
    assert decoder.decode(encode([1.5, [cleared()], "no rank"])).rank is None


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", encode({"ts": 1}), encode([1.0]), encode(["x", []]), encode([1.0, 7])]
)
def test_garbage_is_refused(data):
    with pytest.raises(EngineEventError):
        BatchDecoder().decode(data)


def extra(keys, lora=None, parent=None, block_size=4):
    tokens = list(range(block_size * len(keys)))
    event = only(
        stored(list(range(len(keys))), parent, tokens, block_size, extra_keys=keys, lora_name=lora)
    )
    return event.cache_salt, event.media


@pytest.mark.parametrize(
    ("keys", "lora", "parent", "expected"),
    [
        ([None, None], None, None, ("", ())),
        ([["salt"], None], None, None, ("salt", ())),
        ([["ad", "salt"], ["ad"]], "ad", None, ("salt", ())),
        ([["ad"], ["ad"]], "ad", None, ("", ())),
        ([["salt", "salt"]], "salt", None, ("salt", ())),
        ([[["img", 2], "salt"], [["img", -2], ["two", 3]]], None, None,
         ("salt", ((2, "img"), (7, "two")))),
        ([[["img", -6]], [["img", -10]]], None, 9, ("", ())),
        ([["embeds"], [b"\xab"]], None, 9, ("", ((0, "embeds"), (4, "ab")))),
        ([[["img", 99], ["", 1], ["img"], 5]], None, None, ("", ())),
    ],
)  # fmt: skip
def test_extra_keys(keys, lora, parent, expected):
    assert extra(keys, lora, parent) == expected


def test_nameless_adapter_is_not_the_base_model():
    assert only(["BlockStored", [7], None, [1, 2], 2, 5]).lora == "lora-id-5"


@pytest.mark.parametrize(
    ("kind", "group", "chained"),
    [
        (None, None, True),
        (None, 0, True),
        (None, 1, False),
        ("unknown", 0, True),
        ("full_attention", 2, True),
        ("mla_attention", 0, True),
        ("sliding_window", 0, False),
        ("mamba", 1, False),
    ],
)
def test_groups_that_form_chains(kind, group, chained):
    event = only(stored([1], None, [1], 1, group_idx=group, kv_cache_spec_kind=kind))
    assert event.chained is chained


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([b"topic", (5).to_bytes(8, "big"), b"data"], (5, b"data")),
        ([b"", (5).to_bytes(8, "big"), b"data"], (5, b"data")),
        ([b"", b"topic", (0).to_bytes(8, "big"), b"data"], (0, b"data")),
        ([b"", END, b""], (END_OF_REPLAY, b"")),
        ([b"", b"", END, b""], (END_OF_REPLAY, b"")),
    ],
)
def test_frames_of_every_version(frames, expected):
    assert split_frames(frames) == expected


@pytest.mark.parametrize("frames", [[], [b"data"], [b"", b"1234", b"data"]])
def test_frames_without_number(frames):
    with pytest.raises(EngineEventError):
        split_frames(frames)
