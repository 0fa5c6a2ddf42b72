"""The index against a naive model: a set of (source, tier, block)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from indexer.core.index import PrefixIndex
from indexer.core.tiers import Tier, digest_term

blocks = st.lists(st.integers(1, 12), max_size=8)
tiers = st.sampled_from(list(Tier))
positions = st.integers(0, 3)


class NaiveIndex:
    """What the index is meant to be, without regard to speed."""

    def __init__(self) -> None:
        self.held: dict[int, set[tuple[Tier, int]]] = {}

    def depth(self, source: int, tier: Tier, chain: list[int]) -> int:
        for position, block in enumerate(chain):
            if not any((t, block) in self.held[source] for t in Tier if t <= tier):
                return position
        return len(chain)

    def digest(self, source: int) -> int:
        digest = 0
        for tier, block in self.held[source]:
            digest ^= digest_term(tier, block)
        return digest


class IndexAgainstNaive(RuleBasedStateMachine):
    """Random operations with holes, several sources and tiers; both must agree after each."""

    few_blocks = 12  # block by block

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(self.few_blocks)
        self.naive = NaiveIndex()
        self.sources: list[int] = []

    def source(self, position: int) -> int | None:
        return self.sources[position % len(self.sources)] if self.sources else None

    @rule()
    def open(self):
        source = self.index.open_source()
        assert source not in self.naive.held
        self.naive.held[source] = set()
        self.sources.append(source)

    @rule(position=positions)
    def close(self, position):
        source = self.source(position)
        if source is not None:
            self.index.close_source(source)
            del self.naive.held[source]
            self.sources.remove(source)

    @rule(position=positions, tier=tiers, chosen=blocks)
    def register(self, position, tier, chosen):
        source = self.source(position)
        if source is not None:
            before = len(self.naive.held[source])
            self.naive.held[source] |= {(tier, block) for block in chosen}
            news = len(self.naive.held[source]) - before
            assert self.index.register(source, tier, chosen) == news

    @rule(position=positions, tier=tiers, chosen=blocks)
    def evict(self, position, tier, chosen):
        source = self.source(position)
        if source is not None:
            before = len(self.naive.held[source])
            self.naive.held[source] -= {(tier, block) for block in chosen}
            gone = before - len(self.naive.held[source])
            assert self.index.evict(source, tier, chosen) == gone

    @rule(position=positions, tier=st.none() | tiers)
    def clear(self, position, tier):
        source = self.source(position)
        if source is not None:
            self.index.clear(source, tier)
            kept = {pair for pair in self.naive.held[source] if tier not in (None, pair[0])}
            self.naive.held[source] = kept

    @rule(chain=blocks)
    def match(self, chain):
        found = self.index.match(chain)
        for tier in Tier:
            expected = {s: self.naive.depth(s, tier, chain) for s in self.sources}
            assert found[tier] == {s: depth for s, depth in expected.items() if depth}

    @invariant()
    def content_count_and_digest_agree(self):
        for source in self.sources:
            held = {(t, block) for t in Tier for block in self.index.held(source, t)}
            assert held == self.naive.held[source]
            assert self.index.count(source) == len(held)
            assert self.index.digest(source) == self.naive.digest(source)
        for tier in Tier:
            distinct = {b for held in self.naive.held.values() for t, b in held if t == tier}
            assert self.index.blocks(tier) == len(distinct)


class BatchedIndexAgainstNaive(IndexAgainstNaive):
    few_blocks = 0  # every batch at once


class MixedIndexAgainstNaive(IndexAgainstNaive):
    few_blocks = 3


TestIndexAgainstNaive = IndexAgainstNaive.TestCase
TestBatchedIndexAgainstNaive = BatchedIndexAgainstNaive.TestCase
TestMixedIndexAgainstNaive = MixedIndexAgainstNaive.TestCase
for case in (TestIndexAgainstNaive, TestBatchedIndexAgainstNaive, TestMixedIndexAgainstNaive):
    case.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.integers(65, 200), st.integers(1, 30))
def test_more_sources_than_a_machine_word_has_bits(count, depth):
    index = PrefixIndex()
    sources = [index.open_source() for _ in range(count)]
    chain = list(range(1, depth + 1))
    for source in sources:
        index.register(source, Tier.GPU, chain[: source % (depth + 1)])
    expected = {s: s % (depth + 1) for s in sources if s % (depth + 1)}
    assert index.match(chain)[Tier.GPU] == expected


def test_a_block_evicted_in_the_middle_and_stored_again_restores_the_tail():
    index = PrefixIndex()
    source = index.open_source()
    index.register(source, Tier.GPU, [1, 2, 3, 4])
    index.evict(source, Tier.GPU, [2])
    assert index.match([1, 2, 3, 4])[Tier.GPU] == {source: 1}
    index.register(source, Tier.GPU, [2])
    assert index.match([1, 2, 3, 4])[Tier.GPU] == {source: 4}


def test_a_slower_tier_carries_on_where_the_faster_one_ends():
    index = PrefixIndex()
    source = index.open_source()
    index.register(source, Tier.GPU, [1, 2])
    index.register(source, Tier.DISK, [3, 4])
    gpu, host, disk, remote = index.match([1, 2, 3, 4, 5])
    assert (gpu, host, disk, remote) == ({source: 2}, {source: 2}, {source: 4}, {source: 4})


def test_the_same_block_in_two_tiers_does_not_cancel_in_the_digest():
    index = PrefixIndex()
    source = index.open_source()
    index.register(source, Tier.GPU, [7])
    index.register(source, Tier.HOST, [7])
    assert index.digest(source) != 0


def test_a_closed_source_is_refused():
    index = PrefixIndex()
    source = index.open_source()
    index.close_source(source)
    with pytest.raises(KeyError, match="not open"):
        index.register(source, Tier.GPU, [1])


def test_hash_zero_names_no_block():
    index = PrefixIndex()
    source = index.open_source()
    assert index.register(source, Tier.GPU, [0, 5]) == 1
    assert index.evict(source, Tier.GPU, [0]) == 0
    assert list(index.held(source, Tier.GPU)) == [5]


def test_repetitions_within_one_batch_count_once():
    index = PrefixIndex()
    source = index.open_source()
    assert index.register(source, Tier.GPU, [5, 6, 5, 5]) == 2
    assert index.digest(source) == 5 ^ 6
    assert index.evict(source, Tier.GPU, [6, 6]) == 1
    assert index.digest(source) == 5


@pytest.mark.parametrize("few_blocks", [0, 12, 10_000])
@pytest.mark.parametrize("seed", range(3))
def test_growth_and_crowded_buckets_lose_nothing(seed, few_blocks):
    """Many blocks whose low bits agree fill few buckets; the rest must go elsewhere and be found."""
    rng = random.Random(seed)
    index, naive = PrefixIndex(few_blocks), set()
    source = index.open_source()
    for step in range(60):
        crowd = rng.randrange(1, 4)
        batch = [
            rng.getrandbits(40) << 24 | crowd if rng.random() < 0.3 else rng.getrandbits(64) or 1
            for _ in range(rng.randrange(1, 900))
        ]
        index.register(source, Tier.GPU, batch)
        naive |= set(batch)
        if step % 3 == 0:
            gone = rng.sample(sorted(naive), len(naive) // 3)
            assert index.evict(source, Tier.GPU, gone) == len(gone)
            naive -= set(gone)
        chain = rng.sample(sorted(naive), min(len(naive), 700))
        assert index.match(chain)[Tier.GPU] == ({source: len(chain)} if chain else {})
        assert index.match([*chain, 1 << 63, *chain])[Tier.GPU] == (
            {source: len(chain)} if chain else {}
        )
    assert set(index.held(source, Tier.GPU)) == naive
    assert index.count(source) == len(naive)
