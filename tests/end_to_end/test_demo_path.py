"""The demo's own path, small: one command starts everything, replays, reports and leaves nothing."""

import asyncio
import sys

import msgspec

RUN_FIELDS = {
    "policy",
    "load",
    "requests",
    "failed",
    "hit_ratio",
    "pooled_bound",
    "imbalance",
    "ttft_s",
    "tpot_s",
    "generator_lag_s",
    "router_cpu_s",
}


async def test_the_demo_prints_both_policies_and_saves_figures_and_plot(tmp_path):
    small = [
        "--trace",
        "generated",
        "--requests",
        "60",
        "--warmup-requests",
        "20",
        "--engines",
        "2",
        "--speed",
        "30",
    ]
    command = [sys.executable, "-m", "warmroute", "bench", "demo", *small, "--out", str(tmp_path)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert b"round_robin" in out
    assert b"least_prefill" in out
    assert b"look-alike" in out
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")

    result = msgspec.json.decode((tmp_path / "result.json").read_bytes())
    assert {"trace", "seed", "speedup", "engines", "runs"} <= set(result)
    turns, ours = result["runs"]
    assert (turns["policy"], ours["policy"]) == ("round_robin", "least_prefill")
    for run in (turns, ours):
        assert set(run) >= RUN_FIELDS
        assert (run["requests"], run["failed"]) == (60, 0)
        assert {"mean", "p50", "p90", "p99"} <= set(run["ttft_s"])
        assert run["ttft_s"]["p99"] >= run["ttft_s"]["p50"] > 0
        assert 0 <= run["hit_ratio"] <= 1
        assert run["router_cpu_s"] > 0
    assert ours["hit_ratio"] >= turns["hit_ratio"]
