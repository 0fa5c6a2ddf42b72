from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.core.blocks import block_hashes, namespace_hash, token_bytes, unpack_hashes
from indexer.core.chains import extend_chain, fold_media
from indexer.core.engine_events import Cleared, Removed, Stored
from indexer.core.events import Clear, Register
from indexer.core.held import HeldBlocks
from indexer.core.tiers import TIER_OF, WIRE_NAMES, Tier, digest_term

SEED = namespace_hash("m")
TOKENS = list(range(100, 400))


class Replica:
    """Applies operations and refuses whatever is not a transition."""

    def __init__(self):
        self.pairs = set()

    def apply(self, ops):
        for op in ops:
            if isinstance(op, Clear):
                assert self.pairs, "clear of nothing"
                self.pairs.clear()
                continue
            tier = TIER_OF[op.tier]
            assert op.hashes
            for own in unpack_hashes(op.hashes):
                if isinstance(op, Register):
                    assert (tier, own) not in self.pairs
                    self.pairs.add((tier, own))
                else:
                    self.pairs.remove((tier, own))

    def digest(self):
        digest = 0
        for tier, own in self.pairs:
            digest ^= digest_term(tier, own)
        return digest


def pairs_of(held, max_bytes=1 << 16):
    return {
        (TIER_OF[op.tier], own)
        for op in held.snapshot_ops(max_bytes)
        for own in unpack_hashes(op.hashes)
    }


def store(first, last, size, *, tier=Tier.GPU, tokens=TOKENS, salt="", **more):
    """Engine blocks `first` to `last` of one prompt; the hash of a block is its number + 1."""
    return Stored(
        list(range(first + 1, last + 2)),
        first or None,
        tokens[first * size : (last + 1) * size],
        size,
        tier,
        cache_salt=salt,
        **more,
    )


def gpu(tokens, block_tokens, seed=SEED):
    return {(Tier.GPU, own) for own in block_hashes(tokens, block_tokens, seed)}


# --- A naive model: copies per engine block; content recomputed from scratch each time.


class NaiveModel:
    def __init__(self, block_tokens, size):
        self.block_tokens, self.size = block_tokens, size
        self.copies = Counter()  # (tier, tokens up to and with the block) -> copies

    def has(self, prefix):
        return any(self.copies[tier, prefix] for tier in Tier)

    def pairs(self):
        found = set()
        for (tier, prefix), count in self.copies.items():
            if not count:
                continue
            start = len(prefix) - self.size
            for end in range(self.block_tokens, len(prefix) + 1, self.block_tokens):
                if end > start and self._covers(tier, prefix, end):
                    found.add((tier, block_hashes(prefix[:end], self.block_tokens, SEED)[-1]))
        return found

    def _covers(self, tier, prefix, end):
        """Whether `tier` has every engine block that overlaps the own block ending at `end`."""
        first = (end - self.block_tokens) // self.size * self.size
        return all(
            self.copies[tier, prefix[: at + self.size]] for at in range(first, end, self.size)
        )


@st.composite
def steps(draw):
    """Random life of an engine: prompts over a tiny alphabet, so that they share prefixes."""
    return draw(
        st.lists(
            st.one_of(
                st.tuples(
                    st.just("store"),
                    st.lists(st.integers(0, 1), min_size=1, max_size=6),  # one per engine block
                    st.integers(0, 6),
                    st.sampled_from([Tier.GPU, Tier.GPU, Tier.HOST]),
                ),
                st.tuples(st.just("remove"), st.integers(0, 50), st.integers(1, 3)),
                st.tuples(st.just("unknown"), st.integers(0, 3)),
                st.tuples(st.just("clear")),
            ),
            max_size=30,
        )
    )


@pytest.mark.parametrize(("block_tokens", "size"), [(4, 4), (4, 1), (4, 2), (2, 8), (1, 3), (6, 2)])
@given(steps=steps())
@settings(max_examples=150, deadline=None)
def test_equals_naive_model(block_tokens, size, steps):
    held, naive, replica = HeldBlocks(block_tokens, "m"), NaiveModel(block_tokens, size), Replica()
    key_of = {}

    def key(prefix):
        return key_of.setdefault(prefix, len(key_of) + 1)

    for step in steps:
        match step:
            case ("store", choices, start, tier):
                tokens = tuple(c * 1000 + i for c in choices for i in range(size))
                prefixes = [tokens[: (i + 1) * size] for i in range(len(choices))]
                # An engine continues only what it holds.
                while start and (start >= len(prefixes) or not naive.has(prefixes[start - 1])):
                    start -= 1
                parent = key(prefixes[start - 1]) if start else None
                event = Stored(
                    [key(p) for p in prefixes[start:]],
                    parent,
                    list(tokens[start * size :]),
                    size,
                    tier,
                )
                naive.copies.update((tier, p) for p in prefixes[start:])
            case ("remove", index, count):
                alive = [entry for entry, copies in naive.copies.items() if copies]
                if not alive:
                    continue
                tier = alive[index % len(alive)][0]
                victims = [p for t, p in alive if t is tier][index % 7 :][:count]
                event = Removed([key(p) for p in victims], tier)
                naive.copies.subtract((tier, p) for p in victims)
            case ("unknown", index):
                event = Removed([10_000 + index])
            case _:
                event = Cleared()
                naive.copies.clear()
        replica.apply(held.apply(event))
        assert replica.pairs == naive.pairs() == pairs_of(held)
        assert held.count == len(replica.pairs)
        assert held.digest == replica.digest()


@pytest.mark.parametrize(("block_tokens", "size"), [(4, 4), (4, 2), (2, 4)])
@given(order=st.permutations(range(8)))
@settings(max_examples=60, deadline=None)
def test_order_of_stores_does_not_matter(block_tokens, size, order):
    held, replica = HeldBlocks(block_tokens, "m"), Replica()
    for index in order:
        replica.apply(held.apply(store(index, index, size)))
    assert replica.pairs == gpu(TOKENS[: 8 * size], block_tokens)
    assert held.parked == 0


def test_one_of_two_copies_is_not_all():
    held = HeldBlocks(4, "m")
    held.apply(store(0, 2, 4))
    assert held.apply(store(2, 2, 4)) == []
    assert held.apply(Removed([3])) == []
    assert held.apply(Removed([3])) != []
    assert pairs_of(held) == gpu(TOKENS[:8], 4)


def test_removals_never_count_below_zero():
    held = HeldBlocks(4, "m")
    held.apply(store(0, 0, 4))
    held.apply(Removed([1, 1, 1]))
    assert held.skipped["unknown_removal"] == 2
    held.apply(store(0, 0, 4))
    assert pairs_of(held) == gpu(TOKENS[:4], 4)


def test_different_engine_blocks_of_one_name_are_counted():
    held = HeldBlocks(4, "m")
    held.apply(store(0, 0, 4))
    assert held.apply(Stored([77], None, TOKENS[:4], 4)) == []
    assert held.apply(Removed([1])) == []
    assert held.apply(Removed([77])) != []
    assert held.count == 0


def test_orphan_is_adopted_with_what_was_removed_meanwhile():
    held, replica = HeldBlocks(4, "m"), Replica()
    replica.apply(held.apply(store(1, 3, 4)))
    replica.apply(held.apply(Removed([4])))
    replica.apply(held.apply(store(4, 4, 4)))
    assert (held.count, held.parked) == (0, 4)
    replica.apply(held.apply(store(0, 0, 4)))
    expected = gpu(TOKENS[:20], 4) - (gpu(TOKENS[:16], 4) - gpu(TOKENS[:12], 4))
    assert replica.pairs == pairs_of(held) == expected
    assert held.parked == 0


def test_orphan_that_was_removed_is_forgotten():
    held = HeldBlocks(4, "m")
    held.apply(store(1, 2, 4))
    held.apply(Removed([2]))
    held.apply(Removed([3]))
    assert held.parked == 0
    held.apply(store(0, 0, 4))
    assert pairs_of(held) == gpu(TOKENS[:4], 4)


def test_orphans_are_bounded():
    held = HeldBlocks(4, "m", max_parked=3)
    for parent in range(10, 20):
        held.apply(Stored([parent * 10], parent, TOKENS[:4], 4))
    assert held.parked == 3
    assert held.skipped["orphan"] == 10
    assert held.skipped["orphan_dropped"] == 7


def test_known_first_block_needs_no_parent():
    held = HeldBlocks(4, "m")
    held.apply(store(0, 2, 4))
    held.apply(Removed([1]))
    held.apply(store(1, 3, 4))
    assert held.parked == 0
    assert pairs_of(held) == gpu(TOKENS[:16], 4) - gpu(TOKENS[:4], 4)


def test_placeholder_is_resolved_by_an_earlier_store():
    held = HeldBlocks(4, "m")
    held.apply(store(0, 1, 4))
    held.apply(Stored([1, 2, 99], None, [], 0, Tier.HOST))
    held.apply(Removed([1, 2]))
    assert pairs_of(held) == {(Tier.HOST, own) for own in block_hashes(TOKENS[:8], 4, SEED)}
    assert held.skipped["unresolved"] == 1


def test_clear_says_so_once():
    held = HeldBlocks(4, "m")
    assert held.apply(Cleared()) == []
    held.apply(store(0, 1, 4))
    assert held.apply(Cleared()) == [Clear()]
    assert (held.count, held.digest, held.parked) == (0, 0, 0)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Stored([1, 2], None, TOKENS[:4], 4), "length"),
        (Stored([1], None, TOKENS[:4], 0), "length"),
        (Stored([1], None, TOKENS[:3], 3), "block_size"),
        (Stored([1], None, [1, 2, 3, 2**32], 4), "token_range"),
        (Stored([1], None, [1, 2, 3, -1], 4), "token_range"),
        (Stored([1], None, TOKENS[:4], 4, chained=False), "group"),
    ],
)
def test_unusable_stores_are_counted(event, reason):
    held = HeldBlocks(4, "m")
    assert held.apply(event) == []
    assert held.skipped[reason] == 1
    assert held.count == 0


def test_groups_are_kept_apart():
    held = HeldBlocks(4, "m")
    held.apply(store(0, 1, 4))
    held.apply(store(0, 1, 4, group=2))
    held.apply(store(0, 1, 4, group=1, chained=False))
    assert held.apply(Removed([1, 2], group=1)) == []
    assert held.apply(Removed([1, 2], group=2)) == []
    assert held.count == 2
    assert held.skipped == {"group": 2}


def test_namespace_separates_adapters_and_salts():
    events = [
        store(0, 0, 4),
        Stored([11], None, TOKENS[:4], 4, lora="ad"),
        Stored([12], None, TOKENS[:4], 4, cache_salt="s"),
        Stored([13], None, TOKENS[:4], 4, media=((0, "img"),)),
    ]
    held = HeldBlocks(4, "m", secret="x")
    for event in events:
        held.apply(event)
    seeds = [
        namespace_hash("m", secret="x"),
        namespace_hash("m", lora="ad", secret="x"),
        namespace_hash("m", cache_salt="s", secret="x"),
        fold_media(namespace_hash("m", secret="x"), "img"),
    ]
    assert pairs_of(held) == {pair for seed in seeds for pair in gpu(TOKENS[:4], 4, seed)}
    assert held.count == 4


MEDIA = [(5, "one"), (6, "two"), (13, "three")]


def media_chain(block_tokens):
    """The rule, spelled out: block by block, seed folded for every item that begins in it."""
    hashes, seed = [], SEED
    for start in range(0, 24, block_tokens):
        for at, identity in MEDIA:
            if start <= at < start + block_tokens:
                seed = fold_media(seed, identity)
        seed = block_hashes(TOKENS[start : start + block_tokens], block_tokens, seed)[0]
        hashes.append(seed)
    return hashes


@pytest.mark.parametrize(
    ("block_tokens", "size"), [(4, 4), (4, 2), (4, 1), (2, 4), (2, 8), (12, 4)]
)
def test_media_change_the_block_in_which_they_begin(block_tokens, size):
    held = HeldBlocks(block_tokens, "m")
    half = 24 // size // 2
    cut = half * size
    before = tuple(item for item in MEDIA if item[0] < cut)
    after = tuple((at - cut, identity) for at, identity in MEDIA if at >= cut)
    held.apply(store(0, half - 1, size, media=before))
    held.apply(store(half, 24 // size - 1, size, media=after))
    assert pairs_of(held) == {(Tier.GPU, own) for own in media_chain(block_tokens)}


@given(
    cut=st.integers(0, 40),
    block_tokens=st.integers(1, 8),
    media=st.lists(st.tuples(st.integers(0, 39), st.sampled_from("abc")), max_size=4),
)
def test_a_chain_does_not_depend_on_where_it_is_cut(cut, block_tokens, media):
    media.sort(key=lambda item: item[0])
    data, size = token_bytes(range(40)), 4 * block_tokens
    whole = extend_chain(SEED, b"", data, media, size)
    head = [item for item in media if item[0] < cut]
    rest = [(at - cut, identity) for at, identity in media if at >= cut]
    first, seed, tail = extend_chain(SEED, b"", data[: 4 * cut], head, size)
    second, seed, tail = extend_chain(seed, tail, data[4 * cut :], rest, size)
    assert (first + second, seed, tail) == whole


def test_snapshot_in_bounded_pieces():
    held = HeldBlocks(1, "m")
    held.apply(store(0, 99, 1))
    held.apply(store(0, 9, 1, tier=Tier.DISK))
    pieces = held.snapshot_ops(100)
    assert max(len(op.hashes) for op in pieces) == 96
    assert {op.tier for op in pieces} == {WIRE_NAMES[0], WIRE_NAMES[2]}
    assert len(pairs_of(held, 100)) == held.count == 110


def test_nothing_is_kept_of_what_is_gone():
    held = HeldBlocks(4, "m")
    held.apply(store(0, 11, 1))
    held.apply(Removed(list(range(12, 0, -1))))
    assert held.count == 0
    assert all(not space.nodes for spaces in held._groups.values() for space in spaces)


def test_block_tokens_must_be_positive():
    with pytest.raises(ValueError, match="block_tokens"):
        HeldBlocks(0, "m")
