"""Hit-ratio bounds: small cases by hand, a naive model, and the published traces' known figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.traces.bounds import PrefixLru, hit_ratio, hit_tokens
from bench.traces.mooncake import read_mooncake
from bench.traces.record import TraceRequest
from bench.traces.registry import KNOWN_TRACES, find_known, traces_folder


def request(*block_ids, tokens=None, block_tokens=4):
    length = tokens or block_tokens * len(block_ids)
    return TraceRequest(0.0, length, 1, block_ids, block_tokens, 0)


def test_a_leaf_goes_before_its_parent_and_the_oldest_branch_first():
    lru = PrefixLru(capacity_tokens=16, unit_tokens=4)
    lru.insert(request(1, 2, 3))
    lru.insert(request(1, 4))
    assert lru.match(request(1, 2, 3)) == 12
    lru.insert(request(1, 5))
    assert lru.match(request(1, 2, 3)) == 8
    assert lru.match(request(1, 4)) == 8


def test_partial_last_blocks_take_whole_units():
    hits = hit_tokens([request(1, 2, tokens=5)] * 2, None, unit_tokens=4)
    assert hits == [0, 5]
    assert hit_ratio([request(1, 2, tokens=5)] * 2, hits) == 0.5
    assert hit_ratio([request(1, 2, tokens=5)] * 2, hits, skip=1) == 1.0
    lru = PrefixLru(capacity_tokens=6, unit_tokens=2)
    lru.insert(request(1, 2, tokens=5))
    assert lru.match(request(1, 2, tokens=5)) == 5
    tight = PrefixLru(capacity_tokens=6, unit_tokens=4)
    tight.insert(request(1, 2, tokens=5))
    assert tight.match(request(1, 2, tokens=5)) == 4


def test_rotation_over_caches():
    prompts = [request(1), request(1), request(1), request(1)]
    assert hit_tokens(prompts, None, unit_tokens=4, caches=2) == [0, 0, 4, 4]


class NaiveLeafLru:
    """Scans all blocks for the least recently used one without a cached child."""

    def __init__(self, blocks):
        self.capacity, self.clock, self.used, self.parent = blocks, 0, {}, {}

    def match(self, ids):
        count = 0
        while count < len(ids) and ids[count] in self.used:
            count += 1
        return count

    def insert(self, ids):
        self.clock += 1
        for before, block in zip((None, *ids), ids, strict=False):
            self.used[block], self.parent[block] = self.clock, before
        while len(self.used) > self.capacity:
            inner = {self.parent[block] for block in self.used}
            leaves = [block for block in self.used if block not in inner]
            victim = min(leaves, key=lambda block: self.used[block])
            del self.used[victim]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=40), st.integers(5, 12)
)
def test_equals_the_naive_leaf_first_lru(paths, capacity_blocks):
    # A block's id names its whole path, as equal ids mean equal prefixes.
    prompts = [tuple(hash(tuple(path[: j + 1])) for j in range(len(path))) for path in paths]
    naive = NaiveLeafLru(capacity_blocks)
    lru = PrefixLru(capacity_blocks * 4, unit_tokens=4)
    for ids in prompts:
        assert lru.match(request(*ids)) == 4 * naive.match(ids)
        lru.insert(request(*ids))
        naive.insert(ids)


def published(name):
    path = find_known(name, traces_folder())
    if path is None:
        pytest.skip(f"{KNOWN_TRACES[name].file} not in {traces_folder()} (set WARMROUTE_TRACES)")
    return read_mooncake(path)


@pytest.mark.parametrize(
    ("name", "expected"), [("conversation", 0.3736), ("synthetic", 0.6512), ("arxiv-1000", 0.3907)]
)
def test_infinite_cache_on_published_traces(name, expected):
    requests = published(name)
    hits = hit_tokens(requests, None, unit_tokens=512)
    assert hit_ratio(requests, hits) == pytest.approx(expected, abs=0.0005)


@pytest.mark.parametrize(
    ("capacity_tokens", "expected"), [(450_000, 0.163), (1_000_000, 0.266), (3_000_000, 0.361)]
)
def test_pooled_cache_on_the_conversation_trace(capacity_tokens, expected):
    requests = published("conversation")
    hits = hit_tokens(requests, 8 * capacity_tokens, unit_tokens=512)
    assert hit_ratio(requests, hits) == pytest.approx(expected, abs=0.005)


def test_round_robin_on_the_conversation_trace():
    requests = published("conversation")
    hits = hit_tokens(requests, 1_000_000, unit_tokens=512, caches=8)
    assert hit_ratio(requests, hits) == pytest.approx(0.081, abs=0.005)
