"""Whole suites against a scripted server in the place of a fleet."""

import json
import os
from types import SimpleNamespace

import msgspec
import pytest
from replay_target import ScriptedServer

from bench.__main__ import main
from bench.live import suite as suite_module
from bench.live.suite import Suite, SuiteConfig
from bench.live.workload import WorkloadConfig
from bench.stack.fleet import FleetConfig

CONFIG = SuiteConfig(
    workload=WorkloadConfig(
        trace="generated", warmup_requests=4, measured_requests=12, max_output_tokens=2
    ),
    fleet=FleetConfig(policy="", engines=2, speed=200.0),
    policies=("round_robin", "least_prefill"),
    loads=(0.5,),
)


@pytest.fixture
def started(monkeypatch):
    """Policies of the fleets that were started."""
    policies = []

    class FakeFleet:
        engine_urls = ()
        router = SimpleNamespace(pid=os.getpid())

        def __init__(self, config, run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
            policies.append(config.policy)
            self.config = config
            self.server = ScriptedServer()
            self.serving = self.server.serving()

        async def __aenter__(self):
            await self.serving.__aenter__()
            self.router_url = self.server.url
            return self

        async def __aexit__(self, *error):
            await self.serving.__aexit__(*error)

    monkeypatch.setattr(suite_module, "Fleet", FakeFleet)
    return policies


async def test_a_suite_runs_every_policy_and_saves(tmp_path, started, capsys):
    result = await Suite(CONFIG, tmp_path, resume=False).run()
    assert started == ["round_robin", "least_prefill"]
    stored = json.loads((tmp_path / "result.json").read_text())
    assert [run["policy"] for run in stored["runs"]] == started
    assert all(run["failed"] == 0 and run["requests"] == 12 for run in stored["runs"])
    assert stored["smoothing"] == "spread"
    assert stored["speedup"] == result.runs[0].speedup > 200
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    text = capsys.readouterr().out
    assert "arrivals spread, seed 0" in text
    assert str(tmp_path / "result.json") in text


async def test_resume_takes_over_only_the_same_run(tmp_path, started):
    first = await Suite(CONFIG, tmp_path, resume=False).run()
    break_off(tmp_path)
    again = await Suite(CONFIG, tmp_path, resume=True).run()
    assert len(started) == 2
    assert again.runs == first.runs
    workload = msgspec.structs.replace(CONFIG.workload, seed=1)
    changed = msgspec.structs.replace(CONFIG, workload=workload)
    break_off(tmp_path)
    await Suite(changed, tmp_path, resume=True).run()
    assert len(started) == 4


async def test_resume_runs_a_complete_suite_anew(tmp_path, started):
    await Suite(CONFIG, tmp_path, resume=True).run()
    await Suite(CONFIG, tmp_path, resume=True).run()
    assert len(started) == 4


async def test_resume_takes_over_no_run_of_another_trace(tmp_path, started):
    """The look-alike that stands in for an absent file has the same settings but other bounds."""
    await Suite(CONFIG, tmp_path, resume=False).run()
    break_off(tmp_path)
    for file in tmp_path.glob("runs/*/summary.json"):
        run = json.loads(file.read_text())
        run["summary"]["pooled_bound"] += 0.01
        file.write_text(json.dumps(run))
    await Suite(CONFIG, tmp_path, resume=True).run()
    assert len(started) == 4


def break_off(out_dir):
    """Leaves a folder as if the suite had been interrupted before its end."""
    (out_dir / "result.json").unlink()


def test_replay_command_without_a_server(tmp_path, capsys):

    arguments = ["--base-url", "http://127.0.0.1:9", "--model", "m", "--trace", "generated"]
    out = tmp_path / "requests.jsonl"
    status = main(["replay", *arguments, "--requests", "3", "--speedup", "1000", "--out", str(out)])
    assert status == 1
    assert len(out.read_text().splitlines()) == 3
    assert "failed                                         3" in capsys.readouterr().out
