import pytest

from bench.engine.profiles import PROFILES, TimingProfile
from bench.live.load import STEP_TOKENS, busy_s, offered_load
from bench.live.workload import WorkloadConfig, prepare
from bench.traces.arrivals import pace
from bench.traces.record import TraceRequest

PROFILE = TimingProfile(1e-3, 0.0, 7e-3, 1e-5, 1e-9, 1e-8)


def request(arrival_s=0.0, tokens=STEP_TOKENS, output=1):
    return TraceRequest(arrival_s, tokens, output, tuple(range(-(-tokens // 512))), 512, 0)


def test_a_full_step_costs_a_step():
    bare = TimingProfile(1e-3, 0.0, 7e-3, 1e-5, 0.0, 0.0)
    one_step_s = bare.step_s(STEP_TOKENS, 0, 0)
    assert busy_s(request(tokens=STEP_TOKENS - 1), 0, bare) == pytest.approx(one_step_s)


def test_the_documented_sum():
    expected = (
        (1000 - 400 + 50) * (1e-5 + 8e-3 / STEP_TOKENS)
        + 1e-9 * 600 * (400 + 300)
        + 1e-8 * 50 * (1000 + 25)
    )
    assert busy_s(request(tokens=1000, output=50), 400, PROFILE) == pytest.approx(expected)


def test_load_follows_pace_and_engines():
    trace = [request(t) for t in (0.0, 1.0, 2.0)]
    load = offered_load(trace, [0, 0, 0], PROFILE, engines=1)
    assert load == pytest.approx(busy_s(trace[0], 0, PROFILE))  # one a second
    assert offered_load(pace(trace, 4.0), [0] * 3, PROFILE, engines=2) == pytest.approx(2 * load)


def test_workload_bounds_and_load_are_of_the_measured_part():
    config = WorkloadConfig(trace="generated", warmup_requests=200, measured_requests=300)
    workload = prepare(config, fleet_capacity_tokens=1_000_000, unit_tokens=16)
    assert len(workload.requests) == 500
    assert 0 < workload.bounds.pooled < workload.bounds.infinite < 1
    profile = PROFILES["llama-70b-h100-tp4"]
    measured = workload.requests[200:]
    assert workload.load_at_recorded_pace(profile, config, engines=8) == pytest.approx(
        offered_load(measured, workload.pooled_hits[200:], profile, engines=8)
    )
