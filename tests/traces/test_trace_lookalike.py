import numpy as np
import pytest

from bench.traces.bounds import hit_ratio, hit_tokens
from bench.traces.lookalike import generate_conversations

HOUR = 12_031


@pytest.fixture(scope="module")
def requests():
    return generate_conversations(HOUR, seed=3)


def turns_by_ids(requests):
    """Turn of every request as its ids tell it: which earlier prompt's last full block it holds."""
    turn_at = {}
    for request in requests:
        known = [turn_at[b] for b in request.block_ids if b in turn_at]
        turn = known[-1] + 1 if known else 1
        full = request.input_tokens // request.block_tokens
        if full > 1:
            turn_at[request.block_ids[full - 1]] = turn
        yield turn


def test_same_seed_same_trace(requests):
    assert generate_conversations(HOUR, seed=3) == requests
    assert generate_conversations(HOUR, seed=4) != requests


def test_records_are_well_formed(requests):
    parent = {}
    for request in requests:
        assert len(request.block_ids) == -(-request.input_tokens // 512)
        for before, block in zip((None, *request.block_ids), request.block_ids, strict=False):
            assert parent.setdefault(block, before) == before
    times = [r.arrival_s for r in requests]
    assert times == sorted(times)


def test_lengths_have_the_marginals_of_the_original(requests):
    inputs = np.array([r.input_tokens for r in requests])
    outputs = np.array([r.output_tokens for r in requests])
    assert inputs.mean() == pytest.approx(12_035, rel=0.03)
    assert np.percentile(inputs, [50, 90]) == pytest.approx([6_909, 27_367], rel=0.01)
    assert outputs.mean() == pytest.approx(343, rel=0.03)
    assert np.median(outputs) == pytest.approx(350, rel=0.03)


def test_arrivals_and_reuse_gaps(requests):
    assert len(requests) / requests[-1].arrival_s == pytest.approx(3.4, rel=0.05)
    last, gaps = {}, []
    for request in requests:
        if request.session in last:
            gaps.append(request.arrival_s - last[request.session])
        last[request.session] = request.arrival_s
    assert np.median(gaps) == pytest.approx(114, rel=0.1)


def test_sharing_structure(requests):
    assert {r.block_ids[0] for r in requests} == {0}
    turns = list(turns_by_ids(requests))
    shares = [turns.count(n) / len(turns) for n in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.67, 0.17, 0.07, 0.03], abs=0.03)
    hits = hit_tokens(requests, None, unit_tokens=512)
    assert hit_ratio(requests, hits) == pytest.approx(0.374, abs=0.03)


def test_short_traces_exist():
    assert len(generate_conversations(1, seed=0)) == 1
