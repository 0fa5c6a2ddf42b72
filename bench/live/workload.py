"""What a suite replays: a slice of a trace, its bounds, and the pace that makes a wanted load."""

from msgspec import Struct

from bench.engine.profiles import TimingProfile
from bench.live.load import offered_load
from bench.report.summary import Bounds
from bench.traces.arrivals import Smoothing, cap_outputs, cut, pace, smooth
from bench.traces.bounds import hit_ratio, hit_tokens
from bench.traces.record import TraceRequest
from bench.traces.registry import load_trace


class WorkloadConfig(Struct, frozen=True, kw_only=True):
    trace: str = "conversation"  # as for `load_trace`
    smoothing: Smoothing = "spread"
    seed: int = 0
    start: int = 0  # requests of the trace skipped at its beginning
    warmup_requests: int = 500
    measured_requests: int = 2000  # >= 2
    max_output_tokens: int | None = None

    @property
    def total_requests(self) -> int:
        return self.warmup_requests + self.measured_requests


class Workload(Struct, frozen=True):
    trace: str
    origin: str
    requests: list[TraceRequest]  # at the recorded pace, warm-up first
    pooled_hits: list[int]  # tokens of each prompt that the fleet's pooled cache holds
    bounds: Bounds

    def load_at_recorded_pace(
        self, profile: TimingProfile, config: WorkloadConfig, engines: int
    ) -> float:
        """Load of the measured part; a speed-up by s multiplies it by s."""
        measured = slice(config.warmup_requests, None)
        return offered_load(
            self.requests[measured], self.pooled_hits[measured], profile, engines=engines
        )

    def at_pace(self, speedup: float) -> list[TraceRequest]:
        return pace(self.requests, speedup)


def prepare(config: WorkloadConfig, *, fleet_capacity_tokens: int, unit_tokens: int) -> Workload:
    """Loads, shapes and bounds the slice.

    Args:
        config: which slice.
        fleet_capacity_tokens: KV memory of all engines together.
        unit_tokens: the engines' block size.

    Raises:
        TraceError: the trace cannot be had, or is shorter than the slice.
    """
    trace = load_trace(
        config.trace, generated_requests=config.start + config.total_requests, seed=config.seed
    )
    smoothed = smooth(trace.requests, config.smoothing, config.seed)
    chosen = cut(smoothed, config.start, config.total_requests)
    requests = cap_outputs(chosen, config.max_output_tokens)
    pooled = hit_tokens(requests, fleet_capacity_tokens, unit_tokens=unit_tokens)
    infinite = hit_tokens(requests, None, unit_tokens=unit_tokens)
    bounds = Bounds(
        infinite=hit_ratio(requests, infinite, config.warmup_requests),
        pooled=hit_ratio(requests, pooled, config.warmup_requests),
    )
    return Workload(trace.name, trace.origin, requests, pooled, bounds)
