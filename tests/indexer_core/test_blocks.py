"""Block hashes name prefixes; their values are fixed for ever by golden vectors."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.core.blocks import (
    block_hashes,
    chain_hashes,
    namespace_hash,
    pack_hashes,
    token_bytes,
    unpack_hashes,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "block_hashes.json").read_text())
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=60)
hashes = st.lists(st.integers(0, 2**64 - 1), max_size=50)


@pytest.mark.parametrize("case", GOLDEN["namespaces"], ids=lambda case: str(case["arguments"]))
def test_namespace_hashes_match_the_golden_vectors(case):
    arguments = dict(case["arguments"])
    assert namespace_hash(arguments.pop("model"), **arguments) == case["hash"]


@pytest.mark.parametrize("case", GOLDEN["blocks"], ids=lambda case: case["name"])
def test_block_hashes_match_the_golden_vectors(case):
    seed = namespace_hash(case["model"])
    assert block_hashes(case["tokens"], case["block_tokens"], seed) == case["hashes"]


def test_an_independent_formula_gives_the_same_chain():
    import struct

    import xxhash

    seed = namespace_hash("m")
    first = xxhash.xxh3_64(struct.pack("<4I", 1, 2, 3, 4), seed=seed).intdigest()
    second = xxhash.xxh3_64(struct.pack("<4I", 5, 6, 7, 2**32 - 1), seed=first).intdigest()
    assert block_hashes([1, 2, 3, 4, 5, 6, 7, 2**32 - 1, 9], 4, seed) == [first, second]


@given(tokens, tokens, st.integers(1, 8))
def test_prompts_share_hashes_exactly_as_far_as_they_share_full_blocks(left, right, block):
    seed = namespace_hash("m")
    common = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        common += 1
    shared = 0
    for a, b in zip(
        block_hashes(left, block, seed), block_hashes(right, block, seed), strict=False
    ):
        if a != b:
            break
        shared += 1
    assert shared == common // block


@given(tokens, st.integers(1, 8), st.integers(0, 7))
def test_a_chain_can_be_continued_from_any_block(ids, block, cut):
    seed = namespace_hash("m")
    whole = block_hashes(ids, block, seed)
    at = min(cut, len(whole))
    parent = whole[at - 1] if at else seed
    assert chain_hashes(token_bytes(ids[at * block :]), 4 * block, parent) == whole[at:]


def test_a_partial_last_block_has_no_hash():
    assert len(block_hashes(range(31), 16, 0)) == 1
    assert block_hashes(range(15), 16, 0) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": "m"}, {"model": "n"}),
        ({"model": "m", "lora": "a"}, {"model": "m", "cache_salt": "a"}),
        ({"model": "m", "lora": "ab"}, {"model": "ma", "lora": "b"}),
        ({"model": "m", "secret": "s"}, {"model": "m"}),
    ],
)
def test_different_namespaces_never_share_a_seed(one, other):
    assert namespace_hash(**one) != namespace_hash(**other)


@pytest.mark.parametrize("bad", [[-1], [2**32]])
def test_a_token_id_outside_32_bits_is_refused(bad):
    with pytest.raises(OverflowError):
        block_hashes(bad * 16, 16, 0)


def test_a_block_size_below_one_is_refused():
    with pytest.raises(ValueError, match="positive"):
        block_hashes([1], 0, 0)


@given(hashes)
def test_packed_hashes_come_back(values):
    packed = pack_hashes(values)
    assert len(packed) == 8 * len(values)
    assert list(unpack_hashes(packed)) == values


def test_hashes_travel_little_endian():
    assert pack_hashes([1]) == b"\x01" + bytes(7)


def test_a_torn_hash_is_refused():
    with pytest.raises(ValueError, match="multiple"):
        unpack_hashes(b"\x01\x02\x03")
