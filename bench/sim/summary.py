"""Figures of a simulated run."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from bench.sim.fleet import Outcome


class SimSummary(msgspec.Struct, frozen=True):
    """Over the measured requests of one run."""

    requests: int
    hit_ratio: float  # cached over prompt tokens, by the engines' own count
    imbalance: float  # computed prefill tokens, busiest engine over mean
    request_imbalance: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    e2e_mean_s: float


def summarise(outcomes: Sequence[Outcome], engines: int, skip: int = 0) -> SimSummary:
    """Summary without the first `skip` (warm-up) requests."""
    measured = outcomes[skip:]
    work: dict[str, int] = defaultdict(int)
    requests: dict[str, int] = defaultdict(int)
    for outcome in measured:
        work[outcome.instance] += outcome.prompt_tokens - outcome.cached_tokens
        requests[outcome.instance] += 1
    ttft_s = np.array([(o.first_token_s or np.nan) - o.arrival_s for o in measured])
    e2e_s = np.array([(o.finished_s or np.nan) - o.arrival_s for o in measured])
    return SimSummary(
        requests=len(measured),
        hit_ratio=sum(o.cached_tokens for o in measured) / sum(o.prompt_tokens for o in measured),
        imbalance=max(work.values()) * engines / sum(work.values()),
        request_imbalance=max(requests.values()) * engines / len(measured),
        ttft_mean_s=float(ttft_s.mean()),
        ttft_p50_s=float(np.quantile(ttft_s, 0.5)),
        ttft_p90_s=float(np.quantile(ttft_s, 0.9)),
        ttft_p99_s=float(np.quantile(ttft_s, 0.99)),
        e2e_mean_s=float(e2e_s.mean()),
    )
