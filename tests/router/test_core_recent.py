"""The memory of own decisions: bounded, and equal to a naive one."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.recent import RecentPrefixes

LIMIT = 12
CHAINS = st.lists(st.integers(0, 2), max_size=8).map(
    lambda steps: [hash(tuple(steps[: n + 1])) & (2**64 - 1) for n in range(len(steps))]
)
KEYS = st.sampled_from([("a", 0), ("b", 0), ("b", 1)])


@given(st.lists(st.tuples(KEYS, CHAINS, st.booleans()), max_size=30), CHAINS)
def test_agrees_with_a_naive_memory(events, asked):
    recent = RecentPrefixes(LIMIT)
    naive = {}  # key -> blocks, oldest use first
    for key, chain, forget in events:
        if forget:
            recent.forget(key)
            naive.pop(key, None)
            continue
        recent.note(key, chain)
        used = naive.setdefault(key, [])
        for block in reversed(chain):
            if block in used:
                used.remove(block)
            used.append(block)
        del used[: max(0, len(used) - LIMIT)]
    expected = {}
    for key, used in naive.items():
        depth = next((n for n, block in enumerate(asked) if block not in used), len(asked))
        if depth:
            expected[key] = depth
    assert recent.match(asked) == expected


def test_a_prompt_longer_than_the_memory_keeps_its_head():
    recent = RecentPrefixes(4)
    recent.note(("a", 0), list(range(1, 100)))
    assert recent.match(list(range(1, 100))) == {("a", 0): 4}


def test_tails_are_forgotten_before_heads():
    recent = RecentPrefixes(6)
    recent.note(("a", 0), [1, 2, 3, 4])
    recent.note(("a", 0), [10, 11, 12])
    assert recent.match([1, 2, 3, 4]) == {("a", 0): 3}
