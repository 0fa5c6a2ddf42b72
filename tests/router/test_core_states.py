"""Small state machines: degrade level, health, retry budget."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.degrade import DegradeConfig, DegradeLevel, Signals, level_of
from router.core.health import HealthConfig, InstanceHealth
from router.core.retries import RetryBudget, RetryConfig

WELL = Signals(True, True, 2, 2, 2)
LAGGING = Signals(True, True, 2, 1, 2)
NO_BUS = Signals(True, False, 2, 2, 2)
NOTHING = Signals(True, False, 2, 2, 0)


def test_levels_by_what_is_lost():
    assert [level_of(s) for s in (WELL, LAGGING, NO_BUS, NOTHING)] == [0, 1, 2, 3]
    assert level_of(Signals(False, False, 0, 0, 1)) == 2
    assert level_of(Signals(True, True, 0, 0, 0)) == 3


def test_worse_at_once_and_better_only_when_it_holds():
    level = DegradeLevel(DegradeConfig(better_after_s=1.0), level=0)
    assert level.observe(NO_BUS, 0.0) == 2
    assert level.observe(WELL, 0.1) == 2
    assert level.observe(NO_BUS, 0.9) == 2  # flapped: the wait starts again
    assert level.observe(WELL, 1.2) == 2
    assert level.observe(WELL, 2.1) == 2
    assert level.observe(WELL, 2.3) == 0
    assert level.changes == 2


@given(st.lists(st.sampled_from([WELL, LAGGING, NO_BUS, NOTHING]), max_size=30))
def test_the_level_is_never_better_than_the_signals(signals):
    level = DegradeLevel(DegradeConfig(better_after_s=0.5), level=0)
    for step, seen in enumerate(signals):
        assert level.observe(seen, step * 0.2) >= level_of(seen)


HEALTH = HealthConfig(failures_to_down=3, pause_min_s=1.0, pause_max_s=4.0)


def test_down_after_failures_in_a_row_and_back_on_trial():
    health = InstanceHealth(HEALTH)
    for _ in range(2):
        health.failed(0.0)
    assert health.is_up(0.0)
    health.succeeded()
    for _ in range(3):
        health.failed(0.0)
    assert not health.is_up(0.9)
    assert health.is_up(1.0)
    health.failed(1.0)  # the trial failed: a longer pause
    assert not health.is_up(2.9)
    assert health.is_up(3.0)
    health.succeeded()
    assert health.is_up(3.0)


def test_failures_while_down_do_not_lengthen_the_pause():
    health = InstanceHealth(HEALTH)
    for _ in range(50):
        health.failed(0.0)
    assert health.is_up(1.0)


@given(st.lists(st.booleans(), max_size=100))
def test_a_pause_is_never_longer_than_the_longest(results):
    health = InstanceHealth(HEALTH)
    for step, good in enumerate(results):
        if good:
            health.succeeded()
            assert health.is_up(step)
        else:
            health.failed(float(step))
        assert health.is_up(step + HEALTH.pause_max_s)


@given(st.lists(st.booleans(), max_size=300), st.floats(0, 1), st.integers(1, 20))
def test_retries_never_exceed_their_share(events, share, burst):
    budget = RetryBudget(RetryConfig(share=share, min_per_s=0, burst=burst), 0.0)
    requests = retries = 0
    for is_request in events:
        if is_request:
            budget.note_request()
            requests += 1
        else:
            retries += budget.take(0.0)
        assert retries <= burst + share * requests + 1e-6


def test_time_earns_retries_too():
    budget = RetryBudget(RetryConfig(share=0, min_per_s=1, burst=2), 0.0)
    assert [budget.take(0.0) for _ in range(3)] == [True, True, False]
    assert budget.take(1.0)
    assert not budget.take(1.5)
    assert [budget.take(100.0) for _ in range(3)] == [True, True, False]
