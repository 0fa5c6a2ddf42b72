"""The dispatcher: joins what is known, decides, takes the lease."""

import pytest

from router.core.dispatch import DispatchConfig, Dispatcher
from router.core.errors import NoInstanceError
from router.core.policies import POLICIES, least_prefill
from router.core.prompt import PromptKey
from router.core.views import Endpoint, PrefixMatch

A, B, C = ("a", 0), ("b", 0), ("c", 0)
BLOCK = 16


class Overlap:
    def __init__(self, **depths):
        self.matches = {
            (name, 0): PrefixMatch(tokens, confidence, 0.0)
            for name, (tokens, confidence) in depths.items()
        }

    def match(self, key, now_s):
        return self.matches


def prompt(blocks, start=1):
    hashes = [start * 1000 + n for n in range(blocks)]
    return PromptKey("tokens", blocks * BLOCK + 1, hashes, BLOCK)


def dispatcher(overlap=None, names="abc", policy=None, **config):
    made = Dispatcher(DispatchConfig(**config), policy or least_prefill(0.0), overlap or Overlap())
    for name in names:
        made.set_endpoint(Endpoint((name, 0), f"http://{name}", ("m",)))
    return made


def test_nobody_there():
    with pytest.raises(NoInstanceError):
        dispatcher(names="").dispatch("r", prompt(1), 0.0)


def test_excluded_unhealthy_and_other_models_are_left_out():
    made = dispatcher()
    made.set_endpoint(Endpoint(B, "http://b", ("m",), healthy=False))
    made.set_endpoint(Endpoint(C, "http://c", ("n",)))
    for number in range(10):
        assert made.dispatch(str(number), prompt(1), 0.0, "m").endpoint.key == A
    assert made.dispatch("r", prompt(1), 0.0, "n").endpoint.key == C
    with pytest.raises(NoInstanceError):
        made.dispatch("r", prompt(1), 0.0, "m", {A})


def test_an_instance_with_unknown_models_may_serve_any():
    made = dispatcher(names="")
    made.set_endpoint(Endpoint(A, "http://a"))
    assert made.dispatch("r", prompt(1), 0.0, "whatever").endpoint.key == A


def test_the_index_is_believed_by_its_confidence():
    made = dispatcher(Overlap(a=(1600, 0.5), b=(1280, 1.0), c=(0, 1.0)))
    dispatch = made.dispatch("r", prompt(100), 0.0)
    assert dispatch.endpoint.key == B
    assert dispatch.decision.expected_cached_tokens == 1280
    assert dispatch.lease.uncached_tokens == 1601 - 1280
    assert not dispatch.used_recent


def test_a_whole_hit_still_leaves_the_last_block_to_compute():
    key = PromptKey("tokens", 4 * BLOCK, [1, 2, 3, 4], BLOCK)
    made = dispatcher(Overlap(a=(4 * BLOCK, 1.0)), prefill_tokens_per_s=100.0)
    assert made.dispatch("r", key, 0.0).decision.expected_cached_tokens == 3 * BLOCK


def test_own_decisions_stand_in_where_the_index_is_silent():
    made = dispatcher()
    first = made.dispatch("r", prompt(100), 0.0)
    first.lease.release(1.0)
    for number in range(5):
        again = made.dispatch(str(number), prompt(100), 1.0)
        again.lease.release(1.0)
        assert again.endpoint.key == first.endpoint.key
        assert again.used_recent


def test_a_certain_index_is_not_contradicted_by_own_decisions():
    overlap = Overlap(a=(0, 1.0), b=(0, 1.0), c=(0, 0.1))
    made = dispatcher(overlap)
    for key in (A, B, C):
        made.recent.note(key, prompt(100).hashes)
    terms = made.dispatch("r", prompt(100), 0.0)
    assert terms.endpoint.key == C  # the only one of which the index is not sure
    assert terms.used_recent


def test_streams_of_strangers_do_not_count_as_knowledge():
    overlap = Overlap(x=(0, 1.0), y=(0, 1.0), z=(0, 1.0))
    made = dispatcher(overlap)
    made.recent.note(A, prompt(100).hashes)
    assert made.dispatch("r", prompt(100), 0.0).endpoint.key == A


def test_a_prompt_under_way_draws_the_same_prompt_but_is_not_free():
    made = dispatcher(prefill_tokens_per_s=1000.0)
    made.dispatch("r", prompt(100), 0.0)
    second = made.dispatch("s", prompt(100), 0.0)
    assert second.lease.uncached_tokens <= 1601


def test_a_burst_of_cold_prompts_spreads():
    made = dispatcher()
    keys = [made.dispatch(str(n), prompt(50, n + 1), 0.0).endpoint.key for n in range(30)]
    assert [keys.count(key) for key in (A, B, C)] == [10, 10, 10]


def test_requests_without_a_prompt_spread_by_queue_depth():
    made = dispatcher()
    none = PromptKey("none", 0, (), BLOCK)
    keys = [made.dispatch(str(n), none, 0.0).endpoint.key for n in range(30)]
    assert [keys.count(key) for key in (A, B, C)] == [10, 10, 10]


def depth_of(made, key):
    made.dispatch("probe", PromptKey("none", 0, (), BLOCK), 0.0).lease.release(0.0)
    decision = made.dispatch("probe", PromptKey("none", 0, (), BLOCK), 0.0)
    decision.lease.release(0.0)
    return next(
        terms.queue_depth_requests for terms in decision.decision.candidates if terms.key == key
    )


def load(running, waiting, at_s, key=A):
    return Endpoint(key, "http://a", ("m",), True, running, waiting, at_s)


def test_foreign_requests_are_counted_and_own_ones_not_twice():
    made = dispatcher(names="a")
    leases = [made.dispatch(str(n), PromptKey("none", 0, (), BLOCK), 0.0).lease for n in range(3)]
    made.set_endpoint(load(5, 0, 1.0))
    assert depth_of(made, A) == 5
    for lease in leases:
        lease.release(1.0)
    assert depth_of(made, A) == 2  # the report still holds our three


def test_a_report_of_our_own_finished_requests_makes_no_strangers():
    made = dispatcher(names="a")
    none = PromptKey("none", 0, (), BLOCK)
    leases = [made.dispatch(str(n), none, 0.0).lease for n in range(8)]
    made.set_endpoint(load(8, 0, 1.0))
    for lease in leases:
        lease.release(1.5)
    assert depth_of(made, A) == 0
    made.set_endpoint(load(8, 0, 2.0))  # measured a little before they ended
    assert depth_of(made, A) == 0
    made.set_endpoint(load(8, 0, 3.0))  # still there: they are not ours
    assert depth_of(made, A) == 8


def test_no_report_is_not_an_idle_one():
    made = dispatcher(names="ab", policy=POLICIES["least_requests"])
    made.set_endpoint(load(4, 0, 1.0))
    made.set_endpoint(Endpoint(A, "http://a", ("m",)))
    assert depth_of(made, A) == 0


def test_decisions_repeat_from_seed_and_id():
    def run():
        made = dispatcher(seed=7)
        return [made.dispatch(str(n), prompt(n % 5, n), n / 10).endpoint.key for n in range(50)]

    assert run() == run()


def test_a_removed_instance_lets_its_leases_run_out():
    made = dispatcher(names="a")
    lease = made.dispatch("r", prompt(3), 0.0).lease
    made.remove_endpoint(A)
    assert not made.endpoints()
    assert made.leases.open_leases() == 1
    lease.release(1.0)
    assert made.leases.open_leases() == 0
