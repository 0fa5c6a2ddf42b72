"""Policies in simulation: what each is for, and what greedy matching does to a shared prefix."""

import pytest

from bench.engine.profiles import PROFILES
from bench.sim.fleet import FleetConfig, SimulatedFleet, full_block_hashes
from bench.sim.summary import SimSummary, summarise
from bench.traces.arrivals import pace
from bench.traces.bounds import hit_ratio, hit_tokens
from bench.traces.lookalike import generate_conversations
from bench.traces.record import TraceRequest
from router.core.policies import POLICIES

ENGINES = 8
CAPACITY_TOKENS = 1_000_000
WARM_UP = 1_000
PACE = 1.5


@pytest.fixture(scope="module")
def conversations() -> list[TraceRequest]:
    return pace(generate_conversations(3_000, seed=5), PACE)


def simulate(policy: str, requests: list[TraceRequest], event_lag_s: float = 0.002) -> SimSummary:
    profile = PROFILES["qwen3-32b-h100-tp2"]
    config = FleetConfig(ENGINES, profile, CAPACITY_TOKENS, 512, event_lag_s)
    fleet = SimulatedFleet(config, POLICIES[policy])
    outcomes = fleet.run(requests)
    assert all(outcome.finished_s is not None for outcome in outcomes)
    assert fleet.dispatcher.leases.open_leases() == 0
    return summarise(outcomes, ENGINES, skip=WARM_UP)


def test_least_prefill_captures_the_pooled_bound_and_stays_balanced(conversations):
    found = simulate("least_prefill", conversations)
    hits = hit_tokens(conversations, ENGINES * CAPACITY_TOKENS, unit_tokens=512)
    assert found.hit_ratio >= 0.95 * hit_ratio(conversations, hits, WARM_UP)
    assert found.imbalance <= 1.15


def test_least_prefill_beats_round_robin_in_hits_and_in_time_to_first_token(conversations):
    ours, turns = simulate("least_prefill", conversations), simulate("round_robin", conversations)
    assert ours.hit_ratio > 2 * turns.hit_ratio
    assert ours.ttft_mean_s < 0.6 * turns.ttft_mean_s


def test_greedy_matching_sends_all_to_the_engine_that_has_the_shared_block():
    """Every prompt begins with one common block, so whoever computed it first gets everything.

    Only a light load shows the pure effect: under pressure that engine evicts even this block.
    """
    requests = pace(generate_conversations(600, seed=5), 0.05)
    found = simulate_light("longest_match", requests)
    assert found.imbalance == pytest.approx(ENGINES, rel=0.02)
    assert simulate_light("least_prefill", requests).imbalance < 1.5


def test_greedy_matching_fails_what_least_prefill_is_held_to(conversations):
    found = simulate("longest_match", conversations)
    hits = hit_tokens(conversations, ENGINES * CAPACITY_TOKENS, unit_tokens=512)
    assert found.hit_ratio < 0.95 * hit_ratio(conversations, hits, WARM_UP)
    assert found.imbalance > 1.15


def simulate_light(policy: str, requests: list[TraceRequest]) -> SimSummary:
    config = FleetConfig(ENGINES, PROFILES["llama-8b-h100"], 3 * CAPACITY_TOKENS, 512)
    return summarise(SimulatedFleet(config, POLICIES[policy]).run(requests), ENGINES, skip=20)


def test_the_same_inputs_give_the_same_figures(conversations):
    short = conversations[:1_200]
    assert simulate("least_prefill", short) == simulate("least_prefill", short)


def test_trace_blocks_split_into_finer_ones_with_the_same_sharing():
    request = TraceRequest(0.0, 1_100, 1, (7, 9, 12), 512, 0)
    assert full_block_hashes(request, 512) == [8, 10]
    fine = full_block_hashes(request, 256)
    assert fine == [15, 16, 19, 20]
    with pytest.raises(ValueError, match="not a multiple"):
        full_block_hashes(request, 100)
