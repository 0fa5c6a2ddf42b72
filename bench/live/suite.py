"""A suite: every wanted (load, policy) pair replayed against a fresh fleet, then reported."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.engine.profiles import PROFILES
from bench.live.outcome import Outcome
from bench.live.probe import Probe
from bench.live.progress import progress_for
from bench.live.replay import ReplayConfig, replay
from bench.live.workload import Workload, WorkloadConfig, prepare
from bench.report.plot import draw
from bench.report.result import (
    RunSummary,
    SuiteResult,
    machine_class,
    read_outcomes,
    utc_date,
    write_outcomes,
    write_result,
)
from bench.report.summary import summarise
from bench.report.table import runs_table
from bench.stack.fleet import Fleet, FleetConfig

_DRAIN_TIMEOUT_S = 180.0


class SuiteConfig(Struct, frozen=True, kw_only=True):
    workload: WorkloadConfig
    fleet: FleetConfig  # its policy is replaced by each of `policies`
    policies: tuple[str, ...]  # the first is what the others are compared with
    loads: tuple[float, ...]


class _StoredRun(Struct, frozen=True):
    """A finished run and what it was run with, so that only the same run is taken up again."""

    workload: WorkloadConfig
    fleet: FleetConfig
    summary: RunSummary


class _RunFiles:
    def __init__(self, out_dir: Path, policy: str, load: float) -> None:
        self.folder = out_dir / "runs" / f"{policy}-{load:g}"
        self.summary = self.folder / "summary.json"
        self.outcomes = self.folder / "requests.jsonl"


class Suite:
    """Runs a suite and keeps everything under `out_dir`.

    Args:
        config: what to run.
        out_dir: gets result.json, plot.png, and a folder with logs and requests for each run.
        resume: whether the runs of a suite that was broken off there are taken over, where their
            settings and workload are the same. A complete suite is always run anew.

    Raises:
        TraceError: the trace cannot be had, or is shorter than the slice.
        KeyError: the fleet's profile is unknown.
    """

    def __init__(self, config: SuiteConfig, out_dir: Path, *, resume: bool) -> None:
        self._config = config
        self._out_dir = out_dir
        self._result_path = out_dir / "result.json"
        self._resume = resume and not self._result_path.exists()
        self._profile = PROFILES[config.fleet.profile]
        self._workload: Workload = prepare(
            config.workload,
            fleet_capacity_tokens=config.fleet.engines * config.fleet.capacity_tokens,
            unit_tokens=config.fleet.block_tokens,
        )

    async def run(self) -> SuiteResult:
        """Runs what is missing, prints the table, and writes result.json and plot.png.

        Raises:
            ProcessError: a fleet did not start.
        """
        print(self._introduction(), flush=True)
        self._result_path.unlink(missing_ok=True)
        stored = [await self._run_or_resume(policy, load) for load, policy in self._pairs()]
        result = self._result([run for run, _ in stored])
        write_result(self._result_path, result)
        draw(self._out_dir / "plot.png", result, {_key(run): _ttfts_s(o) for run, o in stored})
        print(f"\n{runs_table(result.runs)}\n")
        print(f"saved {self._result_path} and {self._out_dir / 'plot.png'}")
        return result

    def _pairs(self) -> Iterator[tuple[float, str]]:
        return ((load, policy) for load in self._config.loads for policy in self._config.policies)

    def _introduction(self) -> str:
        work, fleet, bounds = self._config.workload, self._config.fleet, self._workload.bounds
        return (
            f"{self._workload.trace} ({self._workload.origin}), arrivals {work.smoothing}, "
            f"seed {work.seed}: {work.warmup_requests} requests to warm up, "
            f"{work.measured_requests} measured\n"
            f"{fleet.engines} engines {fleet.profile} at {fleet.speed:g}x speed, "
            f"{fleet.capacity_tokens} tokens of KV cache each; "
            f"hit ratio bounds: {bounds.infinite:.3f} infinite, {bounds.pooled:.3f} pooled"
        )

    async def _run_or_resume(self, policy: str, load: float) -> tuple[RunSummary, list[Outcome]]:
        files = _RunFiles(self._out_dir, policy, load)
        fleet = msgspec.structs.replace(self._config.fleet, policy=policy)
        finished = self._finished(files, fleet) if self._resume else None
        if finished is not None:
            print(f"{policy} at load {load:g}: taken over from {files.folder}", flush=True)
            return finished, read_outcomes(files.outcomes)
        summary, outcomes = await self._run(fleet, load, files.folder)
        write_outcomes(files.outcomes, outcomes)
        run = _StoredRun(self._config.workload, fleet, summary)
        files.summary.write_bytes(msgspec.json.encode(run))
        return summary, outcomes

    def _finished(self, files: _RunFiles, fleet: FleetConfig) -> RunSummary | None:
        try:
            run = msgspec.json.decode(files.summary.read_bytes(), type=_StoredRun)
        except (OSError, msgspec.DecodeError):
            return None
        # The bounds tell apart a trace's file and the look-alike that stands in for it.
        bounds = (run.summary.infinite_bound, run.summary.pooled_bound)
        same = (
            run.workload == self._config.workload
            and run.fleet == fleet
            and bounds == (self._workload.bounds.infinite, self._workload.bounds.pooled)
        )
        return run.summary if same else None

    async def _run(
        self, fleet_config: FleetConfig, load: float, run_dir: Path
    ) -> tuple[RunSummary, list[Outcome]]:
        recorded = self._workload.load_at_recorded_pace(
            self._profile, self._config.workload, fleet_config.engines
        )
        speedup = fleet_config.speed * load / recorded
        requests = self._workload.at_pace(speedup)
        progress = progress_for(f"{fleet_config.policy} at load {load:g}", len(requests))
        async with Fleet(fleet_config, run_dir) as fleet:
            probe = Probe(fleet.engine_urls, fleet.router.pid)
            client = self._client(fleet, requests[-1].arrival_s)
            outcomes = await replay(client, requests, progress, probe.begin)
            readings = await probe.end()
        summary = summarise(
            outcomes,
            policy=fleet_config.policy,
            load=load,
            speedup=speedup,
            engines=fleet_config.engines,
            bounds=self._workload.bounds,
            readings=readings,
        )
        return summary, outcomes

    def _client(self, fleet: Fleet, last_arrival_s: float) -> ReplayConfig:
        return ReplayConfig(
            base_url=fleet.router_url,
            model=fleet.config.model,
            warmup_requests=self._config.workload.warmup_requests,
            namespace=self._config.workload.seed,
            deadline_s=last_arrival_s + _DRAIN_TIMEOUT_S,
            drain_timeout_s=_DRAIN_TIMEOUT_S,
        )

    def _result(self, runs: list[RunSummary]) -> SuiteResult:
        work, fleet = self._config.workload, self._config.fleet
        return SuiteResult(
            trace=self._workload.trace,
            trace_origin=self._workload.origin,
            smoothing=work.smoothing,
            seed=work.seed,
            speedup=max(run.speedup for run in runs),
            engines=fleet.engines,
            engine_profile=fleet.profile,
            engine_speed=fleet.speed,
            capacity_tokens=fleet.capacity_tokens,
            warmup_requests=work.warmup_requests,
            measured_requests=work.measured_requests,
            max_output_tokens=work.max_output_tokens,
            date=utc_date(datetime.now(UTC)),
            machine=machine_class(),
            runs=runs,
        )


def _key(run: RunSummary) -> tuple[str, float]:
    return run.policy, run.load


def _ttfts_s(outcomes: list[Outcome]) -> list[float]:
    return [o.ttft_s for o in outcomes if o.ttft_s is not None and not o.warmup]
