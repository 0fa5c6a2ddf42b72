"""`bench sim`: policies side by side on a modelled fleet, in virtual time."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import msgspec
from tqdm import tqdm

from bench.engine.profiles import PROFILES
from bench.live.workload import Workload, WorkloadConfig, prepare
from bench.sim.fleet import FleetConfig, SimulatedFleet
from bench.sim.summary import SimSummary, summarise
from bench.traces.record import TraceError
from router.core.policies import DEFAULT_WORK_PRICE, POLICIES, make_policy


class SimRun(msgspec.Struct, frozen=True):
    """One simulated (policy, load)."""

    policy: str
    work_price: float | None  # None: the policy has none
    load: float
    speedup: float
    pooled_bound: float
    summary: SimSummary


def main(argv: Sequence[str]) -> int:
    """Runs every policy at every load and prints a table."""
    args = _parser().parse_args(argv)
    config = WorkloadConfig(
        trace=args.trace,
        seed=args.seed,
        warmup_requests=args.warmup_requests,
        measured_requests=args.requests,
    )
    try:
        workload = prepare(
            config,
            fleet_capacity_tokens=args.engines * args.capacity_tokens,
            unit_tokens=args.block_tokens,
        )
    except TraceError as error:
        print(f"warmroute bench: {error}", file=sys.stderr)
        return 1
    print(f"trace: {workload.trace} ({workload.origin}), seed {args.seed}, {args.profile}")
    runs = list(_runs(args, config, workload))
    print(_table(runs))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(runs)))
    print(f"written to {args.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmroute bench sim",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--trace", default="conversation", help="known name, 'generated', or a Mooncake file")
    add("--seed", type=int, default=0, help="of arrivals and generated traces")
    add("--requests", type=int, default=2500, help="requests measured")
    add("--warmup-requests", type=int, default=1500, help="requests before these")
    add("--policies", nargs="+", choices=sorted(POLICIES), default=["round_robin", "least_prefill"])
    add("--work-prices", nargs="+", type=float, default=[DEFAULT_WORK_PRICE])
    add("--loads", nargs="+", type=float, default=[0.6, 0.85], help="1.0 saturates the fleet")
    add("--engines", type=int, default=8)
    add("--profile", choices=sorted(PROFILES), default="llama-70b-h100-tp4")
    add("--capacity-tokens", type=int, default=1_000_000, help="KV memory of each engine")
    add("--block-tokens", type=int, default=512, help="a divisor of the trace's block")
    add("--event-lag-s", type=float, default=0.002, help="engine step to router's index")
    add("--out", type=Path, default=Path("out/sim/runs.json"), help="where the figures go")
    return parser


def _runs(args: argparse.Namespace, config: WorkloadConfig, workload: Workload) -> Iterator[SimRun]:
    profile = PROFILES[args.profile]
    at_recorded_pace = workload.load_at_recorded_pace(profile, config, args.engines)
    fleet = FleetConfig(
        args.engines, profile, args.capacity_tokens, args.block_tokens, args.event_lag_s
    )
    cells = [
        (load, policy, price)
        for load, policy in product(args.loads, args.policies)
        for price in (args.work_prices if policy == "least_prefill" else [None])
    ]
    for load, policy, price in tqdm(cells, unit="run", disable=None):
        chosen = make_policy(policy, price or 0.0)
        speedup = load / at_recorded_pace
        outcomes = SimulatedFleet(fleet, chosen).run(workload.at_pace(speedup))
        summary = summarise(outcomes, args.engines, skip=args.warmup_requests)
        yield SimRun(policy, price, load, speedup, workload.bounds.pooled, summary)


def _table(runs: Sequence[SimRun]) -> str:
    head = (
        f"{'policy':<16}{'price':>6}{'load':>6}{'pace':>6}{'hit':>8}{'of bound':>10}"
        f"{'imbalance':>11}{'TTFT mean':>11}{'p50':>8}{'p90':>8}{'p99':>8}  (s)"
    )
    rows = [
        f"{r.policy:<16}{'' if r.work_price is None else format(r.work_price, 'g'):>6}"
        f"{r.load:>6.2f}{r.speedup:>6.2f}{r.summary.hit_ratio:>8.4f}"
        f"{r.summary.hit_ratio / r.pooled_bound:>10.3f}{r.summary.imbalance:>11.3f}"
        f"{r.summary.ttft_mean_s:>11.3f}{r.summary.ttft_p50_s:>8.3f}{r.summary.ttft_p90_s:>8.2f}"
        f"{r.summary.ttft_p99_s:>8.2f}"
        for r in runs
    ]
    return "\n".join([head, *rows])
