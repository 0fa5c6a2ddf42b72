import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.engine.block_cache import BlockCache, Cleared, Removed, Stored


class NaiveCache:
    """The rules written out: explicit children, explicit leaves, everything searched linearly."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.holders = {}  # hash -> number of users
        self.parent = {}
        self.released_at = {}
        self.private = 0
        self.clock = 0

    def free(self):
        return self.capacity - self.private - sum(1 for n in self.holders.values() if n)

    def empty(self):
        return self.capacity - self.private - len(self.holders)

    def take(self, chain, shared, private):
        idle = sum(1 for name in chain[:shared] if not self.holders[name])
        if idle + private > self.free():
            return False
        for name in chain[:shared]:
            self.holders[name] += 1
        while self.empty() < private:
            self.evict_one()
        self.private += private
        return True

    def evict_one(self):
        parents = {self.parent[name] for name in self.holders}
        leaves = [n for n, users in self.holders.items() if not users and n not in parents]
        victim = min(leaves, key=self.released_at.__getitem__)
        del self.holders[victim]

    def publish(self, chain, start, stop):
        for position in range(start, stop):
            name = chain[position]
            self.parent[name] = chain[position - 1] if position else None
            self.holders[name] = self.holders.get(name, 0) + 1
        self.private -= stop - start

    def release(self, chain, shared, private):
        for name in reversed(chain[:shared]):
            self.holders[name] -= 1
            self.clock += 1
            self.released_at[name] = self.clock
        self.private -= private

    def longest(self, chain, limit):
        depth = 0
        while depth < min(limit, len(chain)) and chain[depth] in self.holders:
            depth += 1
        return depth


def chain_of(branches):
    """A chain in a small tree of prefixes: equal leading branches give equal leading hashes."""
    names, name = [], 0
    for branch in branches:
        name = hash((name, branch))
        names.append(name)
    return names


CHAINS = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(chain_of)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), CHAINS, st.integers(0, 2)),
        st.tuples(st.just("publish"), st.integers(0, 9), st.integers(1, 4)),
        st.tuples(st.just("release"), st.integers(0, 9), st.none()),
        st.tuples(st.just("clear"), st.none(), st.none()),
    ),
    max_size=60,
)


def apply_events(content, events):
    for event in events:
        if isinstance(event, Stored):
            before = event.parent_hash
            assert before is None or before in content
            assert (before is None) == (event.start_block_index == 0)
            assert not content.intersection(event.hashes)
            content.update(event.hashes)
        elif isinstance(event, Removed):
            assert content.issuperset(event.hashes)
            content.difference_update(event.hashes)
        else:
            assert isinstance(event, Cleared)
            content.clear()


def play(capacity, actions):
    """Plays `actions` on both caches, comparing all that can be seen after each of them."""
    cache, naive = BlockCache(capacity), NaiveCache(capacity)
    holders = []  # [chain, shared, private]
    content = set()
    for kind, what, number in actions:
        if kind == "take":
            chain = what
            shared = cache.cached_prefix(chain, len(chain))
            assert shared == naive.longest(chain, len(chain))
            private = len(chain) - shared + number
            taken = cache.acquire(chain, shared, private)
            assert taken == naive.take(chain, shared, private)
            if taken:
                holders.append([chain, shared, private])
        elif kind == "publish" and holders:
            holder = holders[what % len(holders)]
            chain, shared, private = holder
            stop = min(shared + number, len(chain), shared + private)
            cache.publish(chain, shared, stop, "r")
            naive.publish(chain, shared, stop)
            holder[1:] = stop, private - (stop - shared)
        elif kind == "release" and holders:
            holder = holders.pop(what % len(holders))
            cache.release(*holder)
            naive.release(*holder)
        elif kind == "clear":
            cleared = cache.clear()
            assert cleared == (not holders)
            if cleared:
                naive.holders.clear()
        apply_events(content, cache.drain_events())
        assert cache.held_hashes() == set(naive.holders) == content
        assert cache.free_blocks == naive.free()
    for holder in holders:
        cache.release(*holder)
    assert cache.used_blocks == 0


@settings(max_examples=400, deadline=None)
@given(st.integers(6, 14), ACTIONS)
def test_equals_the_naive_model(capacity, actions):
    play(capacity, actions)


def test_evicts_the_tail_of_the_oldest_chain_first():
    cache = BlockCache(4)
    assert cache.acquire([1, 2, 3], 0, 3)
    cache.publish([1, 2, 3], 0, 3, "a")
    cache.release([1, 2, 3], 3, 0)
    assert cache.acquire([1, 9], 1, 2)
    assert cache.drain_events() == [Stored((1, 2, 3), None, 0, "a"), Removed((3,))]
    cache.publish([1, 9], 1, 2, "b")
    assert cache.drain_events() == [Stored((9,), 1, 1, "b")]


def test_a_second_copy_of_a_published_block_is_merged():
    cache = BlockCache(4)
    for request_id in ("a", "b"):
        assert cache.acquire([1, 2], 0, 2)
        cache.publish([1, 2], 0, 2, request_id)
    assert cache.used_blocks == 2
    assert cache.drain_events() == [Stored((1, 2), None, 0, "a")]
    cache.release([1, 2], 2, 0)
    assert cache.used_blocks == 2
    assert not cache.clear()
    cache.release([1, 2], 2, 0)
    assert cache.used_blocks == 0
    assert cache.clear()
    assert cache.drain_events() == [Cleared()]


def test_refuses_what_does_not_fit_without_changing_anything():
    cache = BlockCache(2)
    assert cache.acquire([1], 0, 1)
    assert not cache.acquire([5, 6], 0, 2)
    assert not cache.allocate(2)
    assert cache.free_blocks == 1


def test_wrong_use_is_an_error():
    cache = BlockCache(2)
    with pytest.raises(ValueError, match="private"):
        cache.publish([1], 0, 1, "a")
    with pytest.raises(ValueError, match="private"):
        cache.release([], 0, 1)
    with pytest.raises(KeyError):
        cache.release([1], 1, 0)
    with pytest.raises(ValueError, match="capacity"):
        BlockCache(0)


def test_large_random_load_keeps_its_invariants():
    rng = random.Random(5)
    cache, content = BlockCache(500), set()
    for turn in range(2000):
        chain = chain_of([rng.randrange(3) for _ in range(5)] + [turn] * rng.randrange(40))
        shared = cache.cached_prefix(chain, len(chain))
        assert cache.acquire(chain, shared, len(chain) - shared)
        cache.publish(chain, shared, len(chain), "r")
        cache.release(chain, len(chain), 0)
        apply_events(content, cache.drain_events())
    assert content == cache.held_hashes()
    assert len(content) <= 500
