"""Offered load: how much of a fleet's capacity a trace asks for.

The unit is the engine second at saturation. A saturated engine packs every step full, so a token,
prefilled or decoded, costs its own GEMM time and its share of the step's fixed time; attention
comes on top. For a prompt of L tokens, h of them cached, and o output tokens:

    busy_s = (L - h + o) * (token_s + (cpu_s + base_s) / STEP_TOKENS)
             + pair_s * (L - h) * (h + (L - h) / 2)
             + context_token_s * o * (L + o / 2)

    load = sum of busy_s / (engines * duration)

with h what the pooled cache of the fleet would give (the least work any routing can leave). Load
1.0 is thus the rate at which perfectly routed and balanced engines are just saturated. Below it
steps are not full, and engines are busy for longer than this: load is a scale, not utilisation.
"""

from collections.abc import Sequence

from bench.engine.profiles import TimingProfile, prefill_pairs
from bench.traces.arrivals import span_s
from bench.traces.record import TraceRequest

STEP_TOKENS = 8192  # vLLM's default token budget of a step


def busy_s(request: TraceRequest, cached_tokens: int, profile: TimingProfile) -> float:
    """Engine seconds the request costs at saturation; see the module for the formula."""
    uncached_tokens = request.input_tokens - cached_tokens
    token_s = profile.token_s + (profile.cpu_s + profile.base_s) / STEP_TOKENS
    context_tokens = request.output_tokens * (request.input_tokens + request.output_tokens / 2)
    return (
        (uncached_tokens + request.output_tokens) * token_s
        + profile.pair_s * prefill_pairs(uncached_tokens, cached_tokens)
        + profile.context_token_s * context_tokens
    )


def offered_load(
    requests: Sequence[TraceRequest],
    cached_tokens: Sequence[int],
    profile: TimingProfile,
    *,
    engines: int,
) -> float:
    """Load of the requests at their recorded pace; `pace` by s multiplies it by s.

    Args:
        requests: at least two, arriving over more than 0 s.
        cached_tokens: tokens of each prompt the pooled cache holds.
        profile: timing of one engine.
        engines: how many share the work, >= 1.
    """
    work_s = sum(
        busy_s(request, cached, profile)
        for request, cached in zip(requests, cached_tokens, strict=True)
    )
    return work_s / (engines * span_s(requests))
