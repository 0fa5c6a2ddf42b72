"""Outcomes and summaries with figures that are easy to compute by hand."""

from bench.live.outcome import Outcome
from bench.report.summary import Bounds, Readings, summarise

SUITE_FIELDS = {
    "trace": "conversation",
    "trace_origin": "file",
    "smoothing": "spread",
    "seed": 0,
    "speedup": 2.0,
    "engines": 2,
    "engine_profile": "p",
    "engine_speed": 1.0,
    "capacity_tokens": 1_000_000,
    "warmup_requests": 0,
    "measured_requests": 1,
    "max_output_tokens": None,
    "date": "2030-01-01T00:00:00+00:00",
    "machine": "2 cores",
}


def outcome(index, **fields):
    defaults = {
        "warmup": False,
        "scheduled_s": float(index),
        "ttft_s": 1.0,
        "tpot_s": 0.01,
        "e2e_s": 2.0,
        "status": 200,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 10,
        "instance": "a",
    }
    return Outcome(index=index, **(defaults | fields))


def summary(outcomes, policy="round_robin", load=0.5, readings=None):
    return summarise(
        outcomes,
        policy=policy,
        load=load,
        speedup=2.0,
        engines=2,
        bounds=Bounds(infinite=0.5, pooled=0.4),
        readings=readings or Readings(),
    )
