"""Turns the outcomes of one run into its summary."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from msgspec import Struct

from bench.live.outcome import Outcome
from bench.report.result import Distribution, EngineCounters, Quantiles, RunSummary


class Bounds(Struct, frozen=True):
    """Hit ratios no routing can beat, over the measured requests."""

    infinite: float
    pooled: float


class EngineReading(Struct, frozen=True):
    """Totals of one engine's /metrics at one moment."""

    prompt_tokens: float
    cached_tokens: float


class Readings(Struct, frozen=True):
    """What was read of the processes over the measured part; None where it could not be."""

    router_cpu_s: float | None = None
    before: tuple[EngineReading, ...] | None = None  # one for each engine, in the same order
    after: tuple[EngineReading, ...] | None = None


def summarise(
    outcomes: Sequence[Outcome],
    *,
    policy: str,
    load: float,
    speedup: float,
    engines: int,
    bounds: Bounds,
    readings: Readings,
) -> RunSummary:
    """Summary of the requests after the warm-up; the warm-up itself is left out."""
    measured = [outcome for outcome in outcomes if not outcome.warmup]
    finished = [outcome for outcome in measured if outcome.error is None]
    hit_ratio = _ratio(
        sum(outcome.cached_tokens for outcome in finished),
        sum(outcome.prompt_tokens for outcome in finished),
    )
    return RunSummary(
        policy=policy,
        load=load,
        speedup=speedup,
        requests=len(measured),
        failed=len(measured) - len(finished),
        ttft_s=_distribution(outcome.ttft_s for outcome in finished),
        tpot_s=_distribution(outcome.tpot_s for outcome in finished),
        e2e_s=_distribution(outcome.e2e_s for outcome in finished),
        hit_ratio=hit_ratio,
        infinite_bound=bounds.infinite,
        pooled_bound=bounds.pooled,
        captured_share=_ratio(hit_ratio, bounds.infinite),
        captured_share_pooled=_ratio(hit_ratio, bounds.pooled),
        imbalance=_by_instance(finished, engines, lambda o: o.prompt_tokens - o.cached_tokens),
        imbalance_requests=_by_instance(finished, engines, lambda _: 1),
        engine_counters=_counters(readings),
        generator_lag_s=_lag(measured),
        router_cpu_s=readings.router_cpu_s,
        duration_s=_duration_s(measured, finished),
        errors=dict(sorted(Counter(o.error for o in measured if o.error is not None).items())),
    )


def imbalance(amounts: Sequence[float], engines: int) -> float:
    """Largest amount over the mean of all `engines`, idle ones included; 1.0 when all are zero."""
    total = sum(amounts)
    return max(amounts) * engines / total if total else 1.0


def _by_instance(
    finished: Sequence[Outcome], engines: int, amount: Callable[[Outcome], int]
) -> float | None:
    """Imbalance by the router's word for who answered; None where it does not say."""
    amounts: Counter[str] = Counter()
    for outcome in finished:
        if outcome.instance is None:
            return None
        amounts[outcome.instance] += amount(outcome)
    return imbalance(list(amounts.values()), engines) if amounts else None


def _counters(readings: Readings) -> EngineCounters | None:
    if readings.before is None or readings.after is None:
        return None
    pairs = list(zip(readings.before, readings.after, strict=True))
    prompts = [after.prompt_tokens - before.prompt_tokens for before, after in pairs]
    cached = [after.cached_tokens - before.cached_tokens for before, after in pairs]
    uncached = [prompt - hit for prompt, hit in zip(prompts, cached, strict=True)]
    return EngineCounters(
        prompt_tokens=round(sum(prompts)),
        cached_tokens=round(sum(cached)),
        hit_ratio=_ratio(sum(cached), sum(prompts)),
        imbalance=imbalance(uncached, len(uncached)),
    )


def _distribution(values: Iterable[float | None]) -> Distribution:
    known = [value for value in values if value is not None]
    if not known:
        return Distribution(mean=0.0, p50=0.0, p90=0.0, p99=0.0)
    p50, p90, p99 = np.percentile(known, (50, 90, 99)).tolist()
    return Distribution(mean=float(np.mean(known)), p50=p50, p90=p90, p99=p99)


def _lag(measured: Sequence[Outcome]) -> Quantiles:
    lags = _distribution(outcome.lag_s for outcome in measured)
    return Quantiles(p50=lags.p50, p99=lags.p99)


def _duration_s(measured: Sequence[Outcome], finished: Sequence[Outcome]) -> float:
    ends = (outcome.scheduled_s + (outcome.e2e_s or 0.0) for outcome in finished)
    return max(ends, default=0.0) - measured[0].scheduled_s if finished else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
