"""`bench demo`, `bench live` and `bench replay`."""

import argparse
import asyncio
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.engine.profiles import PROFILES
from bench.live.outage import OutageConfig, outage_table, run_outage
from bench.live.progress import progress_for
from bench.live.replay import ReplayConfig, replay
from bench.live.suite import Suite, SuiteConfig
from bench.live.workload import WorkloadConfig, prepare
from bench.report.result import write_outcomes
from bench.report.summary import Readings, summarise
from bench.report.table import runs_table
from bench.stack.fleet import BLOCK_TOKENS, FleetConfig
from bench.stack.process import ProcessError
from bench.traces.arrivals import SMOOTHINGS
from bench.traces.record import TraceError

DEFAULT_POLICIES = ("round_robin", "least_prefill")


def live_main(argv: Sequence[str]) -> int:
    """Replays a trace against fleets with different policies and reports them side by side."""
    parser = _parser("live", live_main.__doc__)
    _add_workload(parser, requests=2000, warmup=500)
    _add_fleet(parser, speed=1.0)
    _add_suite(parser, loads=[0.6, 0.85], out="out/bench-live")
    return _run_suite(parser.parse_args(argv))


def demo_main(argv: Sequence[str]) -> int:
    """Shows in about two minutes, on two cores, what routing by cached prefix is worth."""
    parser = _parser("demo", demo_main.__doc__)
    _add_workload(parser, requests=600, warmup=200)
    _add_fleet(parser, speed=3.0)
    _add_suite(parser, loads=[0.8], out="out/demo")
    return _run_suite(parser.parse_args(argv))


def outage_main(argv: Sequence[str]) -> int:
    """Kills NATS in the middle of a run and starts it again 20 s later."""
    parser = _parser("outage", outage_main.__doc__)
    parser.add_argument("--seed", type=_count, default=0, help="of arrivals and sessions")
    parser.add_argument("--policies", nargs="+", default=["least_prefill"], help="one run each")
    parser.add_argument("--outage-s", type=_positive, default=20.0, help="seconds without NATS")
    parser.add_argument("--out", type=Path, default=Path("out/outage"), help="folder for results")
    return _guarded(_outage(parser.parse_args(argv)))


async def _outage(args: argparse.Namespace) -> int:
    config = OutageConfig(seed=args.seed, outage_s=args.outage_s)
    results = [await run_outage(config, args.out / name, name) for name in args.policies]
    print(outage_table(results))
    path = args.out / "result.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    print(f"saved {path}")
    return 1 if any(result.failed for result in results) else 0


def replay_main(argv: Sequence[str]) -> int:
    """Replays a trace against any OpenAI-compatible server and prints what the client saw."""
    parser = _parser("replay", replay_main.__doc__)
    parser.add_argument("--base-url", required=True, help="server, without /v1")
    parser.add_argument("--model", required=True, help="model name to ask for")
    parser.add_argument("--speedup", type=_positive, default=1.0, help="pace of arrivals")
    parser.add_argument("--label", default="replay", help="name of the run in the table")
    parser.add_argument("--out", type=Path, help="file for one JSON line per request")
    _add_workload(parser, requests=500, warmup=0)
    _add_engines(parser.add_argument_group("engines behind the server, for load and bounds"))
    return _guarded(_replay(parser.parse_args(argv)))


def _parser(command: str, description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"warmroute bench {command}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def _add_workload(parser: argparse.ArgumentParser, *, requests: int, warmup: int) -> None:
    add = parser.add_argument_group("workload").add_argument
    add("--trace", default="conversation", help="known name, 'generated', or a Mooncake file")
    add("--smoothing", choices=SMOOTHINGS, default="spread", help="times inside the 3 s bins")
    add("--seed", type=_count, default=0, help="of arrivals, tokens and generated traces")
    add("--start", type=_count, default=0, help="requests of the trace to skip")
    add("--requests", type=_measured, default=requests, help="requests measured")
    add("--warmup-requests", type=_count, default=warmup, help="requests before these")
    add("--max-output-tokens", type=_positive_int, help="cap of outputs")


def _add_fleet(parser: argparse.ArgumentParser, *, speed: float) -> None:
    group = parser.add_argument_group("fleet of mock engines")
    _add_engines(group)
    add = group.add_argument
    add("--speed", type=_positive, default=speed, help="engines run that many times as fast")
    add("--router-arg", action="append", default=[], help="one more argument for the router")


def _add_engines(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--engines", type=_positive_int, default=8, help="number of engines")
    add("--profile", choices=sorted(PROFILES), default="llama-70b-h100-tp4", help="their timing")
    add("--capacity-tokens", type=_positive_int, default=1_000_000, help="KV memory of each")


def _add_suite(parser: argparse.ArgumentParser, *, loads: list[float], out: str) -> None:
    add = parser.add_argument_group("suite").add_argument
    add("--policies", nargs="+", default=list(DEFAULT_POLICIES), help="first is the baseline")
    add("--loads", nargs="+", type=_positive, default=loads, help="1.0 saturates the fleet")
    add("--out", type=Path, default=Path(out), help="folder for results and logs")
    add("--resume", action="store_true", help="keep runs that are finished in there")


def _run_suite(args: argparse.Namespace) -> int:
    config = SuiteConfig(
        workload=_workload(args),
        fleet=FleetConfig(
            policy=args.policies[0],
            engines=args.engines,
            profile=args.profile,
            capacity_tokens=args.capacity_tokens,
            speed=args.speed,
            router_args=tuple(args.router_arg),
        ),
        policies=tuple(args.policies),
        loads=tuple(args.loads),
    )
    return _guarded(_suite(config, args.out, resume=args.resume))


def _workload(args: argparse.Namespace) -> WorkloadConfig:
    return WorkloadConfig(
        trace=args.trace,
        smoothing=args.smoothing,
        seed=args.seed,
        start=args.start,
        warmup_requests=args.warmup_requests,
        measured_requests=args.requests,
        max_output_tokens=args.max_output_tokens,
    )


async def _suite(config: SuiteConfig, out_dir: Path, *, resume: bool) -> int:
    result = await Suite(config, out_dir, resume=resume).run()
    return 1 if any(run.failed for run in result.runs) else 0


async def _replay(args: argparse.Namespace) -> int:
    config, profile = _workload(args), PROFILES[args.profile]
    workload = prepare(
        config,
        fleet_capacity_tokens=args.engines * args.capacity_tokens,
        unit_tokens=BLOCK_TOKENS,
    )
    client = ReplayConfig(
        base_url=args.base_url,
        model=args.model,
        warmup_requests=config.warmup_requests,
        namespace=config.seed,
    )
    progress = progress_for(args.label, config.total_requests)
    outcomes = await replay(client, workload.at_pace(args.speedup), progress)
    summary = summarise(
        outcomes,
        policy=args.label,
        load=args.speedup * workload.load_at_recorded_pace(profile, config, args.engines),
        speedup=args.speedup,
        engines=args.engines,
        bounds=workload.bounds,
        readings=Readings(),
    )
    print(runs_table([summary]))
    if args.out:
        write_outcomes(args.out, outcomes)
    return 1 if summary.failed else 0


def _guarded(work: Coroutine[Any, Any, int]) -> int:
    """Runs on uvloop where there is one; known troubles end in one line instead of a traceback."""
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(work)
    except (TraceError, ProcessError, FileNotFoundError) as error:
        print(f"warmroute bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _loop_factory() -> Any:
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - not there on Windows

    return uvloop.new_event_loop


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {value}")
    return value


def _measured(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"a rate needs at least 2 requests, got {value}")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {value}")
    return value
