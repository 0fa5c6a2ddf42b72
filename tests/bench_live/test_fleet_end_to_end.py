"""A real small fleet as child processes: it comes up, serves a replay, and leaves nothing."""

import io

import pytest

from bench.live.probe import Probe
from bench.live.progress import LineProgress
from bench.live.replay import ReplayConfig, replay
from bench.stack.fleet import Fleet, FleetConfig
from bench.stack.nats_server import find_nats_server
from bench.traces.record import TraceRequest

# Ten prompts of two conversations: each repeats the one before and goes on by a block.
TRACE = [
    TraceRequest(0.1 * n, 512 * (n // 2 + 2), 4, (n % 2, *range(10, 11 + n // 2)), 512, n % 2)
    for n in range(10)
]


def skip_without_nats():
    try:
        find_nats_server()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("with_nats", [True, False])
async def test_a_fleet_serves_a_replay(tmp_path, with_nats):
    if with_nats:
        skip_without_nats()
    config = FleetConfig(policy="least_prefill", engines=2, speed=50.0, with_nats=with_nats)
    progress = LineProgress("fleet", len(TRACE), io.StringIO())
    async with Fleet(config, tmp_path / "fleet") as fleet:
        probe = Probe(fleet.engine_urls, fleet.router.pid)
        client = ReplayConfig(base_url=fleet.router_url, model=config.model)
        outcomes = await replay(client, TRACE, progress, probe.begin)
        readings = await probe.end()
        await fleet.restart_router()
        again = await replay(client, TRACE[:1], progress)
    assert [o.error for o in outcomes + again] == [None] * 11
    assert sum(o.prompt_tokens for o in outcomes) == sum(r.input_tokens for r in TRACE)
    assert sum(o.cached_tokens for o in outcomes) > 0.4 * sum(o.prompt_tokens for o in outcomes)
    assert len({o.instance for o in outcomes}) in (1, 2)
    assert sum(r.prompt_tokens for r in readings.after) == sum(r.input_tokens for r in TRACE)
    assert readings.router_cpu_s > 0
    children = [fleet.router, fleet.relay, *(engine.process for engine in fleet.engines)]
    assert not any(child.running for child in children if child)
    assert fleet.nats is None or not fleet.nats.process.running
