"""NATS dies in the middle of traffic and comes back: nobody notices but the metrics."""

from bench.live.outage import OutageConfig, run_outage, session_turns

# The full-size run is `make bench-outage`; this is the same path in a quarter of a minute.
SMALL = OutageConfig(
    engines=3,
    speed=20.0,
    capacity_tokens=60_000,
    sessions=24,
    prefix_blocks=4,
    rate_per_s=30.0,
    warmup_s=3.0,
    before_s=2.0,
    outage_s=3.0,
    settle_s=3.0,
    after_s=2.0,
)


async def test_no_request_fails_and_the_hit_ratio_returns(tmp_path):
    result = await run_outage(SMALL, tmp_path / "fleet", "least_prefill")
    assert result.failed == 0
    assert result.before.hit_ratio > 0.6
    assert result.after.hit_ratio > 0.9 * result.before.hit_ratio
    assert result.during.hit_ratio > 0.7 * result.before.hit_ratio
    assert [level for at_s, level in result.levels if at_s < SMALL.kill_s][-1] == 0
    assert result.degraded_after_s is not None
    assert result.recovered_after_s is not None


def test_the_same_seed_gives_the_same_sessions():
    assert session_turns(SMALL) == session_turns(SMALL)
    assert session_turns(SMALL) != session_turns(OutageConfig(seed=1))
