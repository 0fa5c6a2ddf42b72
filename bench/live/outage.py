"""What losing NATS costs: sessions go on while the server is killed and comes back.

The load is steady on purpose: turns of a fixed set of sessions, each with a prefix of its own, in
random order, more of them than one engine's cache holds. Every window of time then has the same
hit ratio as long as routing knows where the sessions' prefixes are.
"""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import aiohttp
import msgspec

from bench.live.outcome import Outcome
from bench.live.progress import progress_for
from bench.live.replay import ReplayConfig, replay
from bench.stack.fleet import Fleet, FleetConfig
from bench.stack.scrape import fetch_metrics, metric_sum
from bench.traces.record import TraceRequest

_BLOCK_TOKENS = 512
_SAMPLE_S = 0.25
_TIMEOUT_S = 2.0


class OutageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds since the replay's start."""

    seed: int = 0
    engines: int = 8
    speed: float = 3.0
    capacity_tokens: int = 150_000  # of each engine
    sessions: int = 160
    prefix_blocks: int = 8  # of 512 tokens, known after a session's first turn
    rate_per_s: float = 12.0
    warmup_s: float = 30.0
    before_s: float = 15.0  # window measured before the kill
    outage_s: float = 20.0
    settle_s: float = 5.0  # from the server's return to the window after
    after_s: float = 15.0  # length of that window

    @property
    def kill_s(self) -> float:
        return self.warmup_s + self.before_s

    @property
    def return_s(self) -> float:
        return self.kill_s + self.outage_s

    @property
    def end_s(self) -> float:
        return self.return_s + self.settle_s + self.after_s


class Window(msgspec.Struct, frozen=True):
    """Requests sent in one stretch of the run."""

    requests: int
    failed: int
    hit_ratio: float
    ttft_mean_s: float | None


class OutageResult(msgspec.Struct, frozen=True):
    """`levels`: (seconds since start, degrade level) at each change that /metrics showed."""

    config: OutageConfig
    policy: str
    failed: int
    before: Window
    during: Window
    after: Window
    levels: list[tuple[float, int]]
    degraded_after_s: float | None  # from the kill to a level of 2 or worse
    recovered_after_s: float | None  # from the server's return to level 0


def session_turns(config: OutageConfig) -> list[TraceRequest]:
    """Poisson arrivals; each is one session's prefix and a block nobody else has."""
    rng = random.Random(f"outage/{config.seed}")
    turns: list[TraceRequest] = []
    now_s, fresh = 0.0, config.sessions * config.prefix_blocks
    while (now_s := now_s + rng.expovariate(config.rate_per_s)) < config.end_s:
        session = rng.randrange(config.sessions)
        first = session * config.prefix_blocks
        blocks = (*range(first, first + config.prefix_blocks), fresh)
        fresh += 1
        tokens = len(blocks) * _BLOCK_TOKENS
        turns.append(TraceRequest(now_s, tokens, 40, blocks, _BLOCK_TOKENS, session))
    return turns


async def run_outage(config: OutageConfig, run_dir: Path, policy: str) -> OutageResult:
    """Starts a fleet, kills its NATS with SIGKILL in mid-run, starts it again, and measures."""
    fleet_config = FleetConfig(
        policy=policy,
        engines=config.engines,
        speed=config.speed,
        capacity_tokens=config.capacity_tokens,
    )
    turns = session_turns(config)
    async with Fleet(fleet_config, run_dir) as fleet:
        levels: list[tuple[float, int]] = []
        client = ReplayConfig(base_url=fleet.router_url, model=fleet_config.model)
        watch = asyncio.create_task(_watch_level(fleet.router_metrics_url, levels))
        cut = asyncio.create_task(_cut_nats(fleet, config))
        try:
            outcomes = await replay(client, turns, progress_for("nats outage", len(turns)))
            await cut
        finally:
            watch.cancel()
            cut.cancel()
    return _result(config, policy, outcomes, levels)


async def _cut_nats(fleet: Fleet, config: OutageConfig) -> None:
    if fleet.nats is None:
        raise ValueError("a fleet without NATS cannot lose it")
    await asyncio.sleep(config.kill_s)
    fleet.nats.kill()
    await asyncio.sleep(config.outage_s)
    await fleet.nats.restart()


async def _watch_level(url: str, levels: list[tuple[float, int]]) -> None:
    start_s = monotonic()
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            text = await fetch_metrics(session, url)
            if text is not None:
                level = int(metric_sum(text, "warmroute_router_degrade_level"))
                if not levels or levels[-1][1] != level:
                    levels.append((round(monotonic() - start_s, 2), level))
            await asyncio.sleep(_SAMPLE_S)


def _result(
    config: OutageConfig,
    policy: str,
    outcomes: Sequence[Outcome],
    levels: list[tuple[float, int]],
) -> OutageResult:
    worse = [at_s - config.kill_s for at_s, level in levels if at_s > config.kill_s and level >= 2]
    well = [
        at_s - config.return_s for at_s, level in levels if at_s > config.return_s and not level
    ]
    return OutageResult(
        config,
        policy,
        sum(outcome.error is not None for outcome in outcomes),
        _window(outcomes, config.warmup_s, config.kill_s),
        _window(outcomes, config.kill_s, config.return_s),
        _window(outcomes, config.return_s + config.settle_s, config.end_s),
        levels,
        min(worse, default=None),
        min(well, default=None),
    )


def _window(outcomes: Sequence[Outcome], start_s: float, stop_s: float) -> Window:
    chosen = [o for o in outcomes if start_s <= o.scheduled_s < stop_s]
    prompt_tokens = sum(o.prompt_tokens for o in chosen)
    ttfts_s = [o.ttft_s for o in chosen if o.ttft_s is not None]
    return Window(
        len(chosen),
        sum(o.error is not None for o in chosen),
        sum(o.cached_tokens for o in chosen) / prompt_tokens if prompt_tokens else 0.0,
        sum(ttfts_s) / len(ttfts_s) if ttfts_s else None,
    )


def outage_table(results: Sequence[OutageResult]) -> str:
    """Hit ratio and time to first token before, during and after, per policy."""
    lines = [f"{'policy':<16}{'failed':>7}   {'before':>16}{'during':>16}{'after':>16}"]
    for result in results:
        cells = "".join(
            f"{w.hit_ratio:>8.3f}{w.ttft_mean_s or 0:>6.2f} s"
            for w in (result.before, result.during, result.after)
        )
        lines.append(f"{result.policy:<16}{result.failed:>7}   {cells}")
    lines.append("hit ratio and mean time to first token of the requests sent in that window")
    return "\n".join(lines)
