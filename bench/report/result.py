"""The result of a suite of runs, as written to `result.json`.

Field order is the order in the file. Seconds are wall-clock seconds of the run: where engines run
faster than their profile (`engine_speed`), so does the trace, and every time shrinks alike.
"""

import os
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.live.outcome import Outcome


class Distribution(Struct, frozen=True):
    """Seconds; all zero when nothing was measured."""

    mean: float
    p50: float
    p90: float
    p99: float


class Quantiles(Struct, frozen=True):
    p50: float
    p99: float


class EngineCounters(Struct, frozen=True):
    """What the engines' own /metrics counted over the measured part.

    Prompts still waiting when it began are in here, so the ratio differs a little from the one by
    requests; it is the cross-check that needs no header of the router.
    """

    prompt_tokens: int
    cached_tokens: int
    hit_ratio: float
    imbalance: float  # uncached tokens: busiest engine over the mean


class RunSummary(Struct, frozen=True, kw_only=True):
    policy: str
    load: float  # offered load, see bench.live.load
    speedup: float  # of the trace's arrivals
    requests: int  # measured, failed ones included
    failed: int
    ttft_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    hit_ratio: float  # engines' cached tokens over prompt tokens, finished requests
    infinite_bound: float  # hit ratio of an infinite cache
    pooled_bound: float  # of one cache with the capacity of all engines
    captured_share: float  # hit_ratio / infinite_bound
    captured_share_pooled: float  # hit_ratio / pooled_bound
    imbalance: float | None  # uncached prompt tokens: busiest engine over the mean; None if untold
    imbalance_requests: float | None  # likewise, by number of requests
    engine_counters: EngineCounters | None
    generator_lag_s: Quantiles  # how late the client sent
    router_cpu_s: float | None  # CPU of the router over the measured part
    duration_s: float  # of the measured part, to its last answer
    errors: dict[str, int]  # reason of failure -> requests


class SuiteResult(Struct, frozen=True, kw_only=True):
    trace: str
    trace_origin: str  # "file" or "generated"
    smoothing: str  # how arrival times were taken from the trace
    seed: int
    speedup: float  # the fastest of the runs; each run has its own
    engines: int
    engine_profile: str
    engine_speed: float
    capacity_tokens: int  # of one engine
    warmup_requests: int
    measured_requests: int
    max_output_tokens: int | None
    date: str  # UTC, ISO 8601
    machine: str
    runs: list[RunSummary]


def write_result(path: Path, result: SuiteResult) -> None:
    """Indented JSON, keys in the order of the fields."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def write_outcomes(path: Path, outcomes: list[Outcome]) -> None:
    """One JSON object a line."""
    path.write_bytes(msgspec.json.Encoder().encode_lines(outcomes))


def read_outcomes(path: Path) -> list[Outcome]:
    """Inverse of `write_outcomes`.

    Raises:
        OSError: the file cannot be read.
        msgspec.DecodeError: it holds something else.
    """
    return msgspec.json.Decoder(Outcome).decode_lines(path.read_bytes())


def utc_date(now: datetime) -> str:
    return now.isoformat(timespec="seconds")


def machine_class() -> str:
    """Cores this process may use, processor and memory, as far as the system tells."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu = _field(Path("/proc/cpuinfo"), "model name") or os.uname().machine
    memory = _field(Path("/proc/meminfo"), "MemTotal")
    gib = f", {int(memory.split()[0]) / 2**20:.0f} GiB" if memory else ""
    return f"{cores} cores, {cpu}{gib}"


def _field(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, None)
