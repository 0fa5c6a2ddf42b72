"""Policies: what they prefer, and that nothing but the draw depends on the order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.draw import draw
from router.core.policies import NEAR_TIE_S, POLICIES, least_prefill, make_policy
from router.core.views import CandidateView, RequestView

REQUEST = RequestView("r", 0, 4000)


def candidate(name="a", *, cached=0.0, depth=0, pending=0.0, matched=None, rate=1000.0):
    return CandidateView((name, 0), matched, cached, None, None, depth, pending, rate)


CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.integers(0, 10_000).map("i{:05}".format),
        cached=st.integers(0, 4000).map(float),
        depth=st.integers(0, 50),
        pending=st.integers(0, 50_000).map(float),
        matched=st.none() | st.integers(0, 4000),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda c: c.key,
).map(lambda cs: sorted(cs, key=lambda c: c.key))
DRAWS = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize("name", POLICIES)
@given(candidates=CANDIDATES, number=DRAWS)
def test_a_policy_names_a_candidate_and_shows_all_of_them(name, candidates, number):
    decision = POLICIES[name](REQUEST, candidates, number)
    assert decision.policy == name
    assert decision.key in {c.key for c in candidates}
    assert [terms.key for terms in decision.candidates] == [c.key for c in candidates]
    chosen = next(c for c in candidates if c.key == decision.key)
    assert decision.expected_cached_tokens == chosen.expected_cached_tokens
    for terms, view in zip(decision.candidates, candidates, strict=True):
        assert terms.matched_prefix_tokens == view.matched_prefix_tokens
        assert terms.queue_depth_requests == view.queue_depth_requests
        assert terms.index_staleness_s == view.index_staleness_s


@pytest.mark.parametrize("name", ["least_prefill", "longest_match", "least_requests"])
@given(candidates=CANDIDATES, number=DRAWS, data=st.data())
def test_order_matters_only_among_equals(name, candidates, number, data):
    shuffled = data.draw(st.permutations(candidates))
    policy = POLICIES[name]
    one = policy(REQUEST, candidates, number)
    two = policy(REQUEST, shuffled, number)
    costs = {terms.key: terms.cost for terms in one.candidates}
    depths = {c.key: c.queue_depth_requests for c in candidates}
    assert depths[one.key] == depths[two.key]
    best = min(costs.values())
    limit = best + (max(NEAR_TIE_S, 0.02 * abs(best)) if name == "least_prefill" else 0)
    assert max(costs[one.key], costs[two.key]) <= limit + 1e-9


def test_a_prefix_is_followed_until_the_wait_costs_more():
    def choose(pending):
        return least_prefill(0.0)(
            REQUEST, [candidate("warm", cached=3000.0, pending=pending), candidate("cold")], 0.5
        )

    assert (choose(2900.0).key[0], choose(2900.0).reason) == ("warm", "prefix")
    assert (choose(3100.0).key[0], choose(3100.0).reason) == ("cold", "load")


def test_a_price_on_new_work_makes_a_prefix_worth_a_longer_wait():
    candidates = [candidate("warm", cached=3000.0, pending=5000.0), candidate("cold")]
    assert least_prefill(0.0)(REQUEST, candidates, 0.5).key[0] == "cold"
    assert least_prefill(1.0)(REQUEST, candidates, 0.5).key[0] == "warm"
    assert make_policy("least_prefill", 0.0)(REQUEST, candidates, 0.5).key[0] == "cold"
    assert make_policy("random") is POLICIES["random"]


def test_near_ties_go_to_the_shorter_queue():
    near = 1000 * NEAR_TIE_S / 2
    candidates = [candidate("a", depth=5), candidate("b", depth=1, pending=near)]
    assert least_prefill(0.0)(REQUEST, candidates, 0.0).key == ("b", 0)


def test_equals_are_spread_evenly_by_the_draw():
    candidates = [candidate(name) for name in "abcd"]
    counts = dict.fromkeys("abcd", 0)
    for number in range(4000):
        counts[least_prefill(0.0)(REQUEST, candidates, draw(1, str(number))).key[0]] += 1
    assert min(counts.values()) > 900


def test_power_of_two_takes_two_different_ones():
    candidates = [candidate("a", depth=9), candidate("b", depth=1), candidate("c", depth=1)]
    chosen = {POLICIES["power_of_two"](REQUEST, candidates, n / 100).key[0] for n in range(100)}
    assert chosen == {"b", "c"}


def test_round_robin_takes_turns():
    candidates = [candidate(name) for name in "abc"]
    policy = POLICIES["round_robin"]
    keys = [policy(RequestView("r", n, 1), candidates, 0.0).key[0] for n in range(6)]
    assert keys == list("abcabc")


@given(st.integers(0, 2**70), st.text())
def test_draws_are_in_range_and_repeatable(seed, label):
    label = label.encode("utf-8", "replace").decode()
    assert 0 <= draw(seed, label) < 1
    assert draw(seed, label) == draw(seed, label)
