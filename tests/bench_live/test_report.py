import json

import pytest
from bench_outcomes import SUITE_FIELDS, outcome, summary

from bench.live.outcome import Outcome
from bench.report.plot import draw
from bench.report.result import (
    SuiteResult,
    machine_class,
    read_outcomes,
    write_outcomes,
    write_result,
)
from bench.report.summary import EngineReading, Readings, imbalance
from bench.report.table import runs_table


def test_warmup_is_left_out_and_failures_are_counted():
    run = summary(
        [
            outcome(0, warmup=True, ttft_s=99.0, cached_tokens=100),
            outcome(1, ttft_s=1.0, cached_tokens=50, instance="a"),
            outcome(2, ttft_s=3.0, cached_tokens=0, instance="b"),
            Outcome(index=3, warmup=False, scheduled_s=3.0, error="HTTP 503: full", status=503),
        ]
    )
    assert (run.requests, run.failed, run.errors) == (3, 1, {"HTTP 503: full": 1})
    assert (run.ttft_s.mean, run.ttft_s.p50) == (2.0, 2.0)
    assert run.hit_ratio == 0.25
    assert run.captured_share == pytest.approx(0.25 / 0.5)
    assert run.captured_share_pooled == pytest.approx(0.25 / 0.4)
    assert run.imbalance == pytest.approx(100 * 2 / 150)
    assert run.imbalance_requests == 1.0


def test_imbalance_counts_idle_engines():
    assert imbalance([10.0], 8) == 8.0
    assert imbalance([0.0, 0.0], 2) == 1.0


def test_engine_counters_are_differences():
    before = (EngineReading(100, 10), EngineReading(0, 0))
    after = (EngineReading(200, 60), EngineReading(150, 0))
    run = summary([outcome(0)], readings=Readings(1.5, before, after))
    assert (run.engine_counters.prompt_tokens, run.engine_counters.cached_tokens) == (250, 50)
    assert run.engine_counters.hit_ratio == 0.2
    assert run.engine_counters.imbalance == pytest.approx(150 * 2 / 200)
    assert run.router_cpu_s == 1.5


def test_unknown_engines_and_no_answers():
    run = summary([outcome(0, instance=None), outcome(1)])
    assert run.imbalance is None
    nothing = summary([Outcome(index=0, warmup=False, scheduled_s=0.0, error="x")])
    assert (nothing.failed, nothing.hit_ratio, nothing.ttft_s.p99) == (1, 0.0, 0.0)
    assert nothing.imbalance is None


def test_table_compares_with_the_first_run_of_the_load():
    slow = summary([outcome(0, ttft_s=4.0)], policy="round_robin")
    quick = summary([outcome(0, ttft_s=1.0)], policy="least_prefill")
    other = summary([outcome(0, ttft_s=2.0)], policy="round_robin", load=0.9)
    text = runs_table([slow, quick, other])
    assert "1.000 (0.25x)" in text
    assert text.count("TTFT p50") == 2
    assert "load 0.50" in text
    assert runs_table([]) == ""


def test_outcomes_survive_the_file(tmp_path):
    outcomes = [outcome(0), outcome(1, warmup=True, instance=None)]
    write_outcomes(tmp_path / "r.jsonl", outcomes)
    assert read_outcomes(tmp_path / "r.jsonl") == outcomes


def test_result_has_its_keys_in_order(tmp_path):
    result = SuiteResult(**SUITE_FIELDS, runs=[summary([outcome(0)])])
    write_result(tmp_path / "result.json", result)
    stored = json.loads((tmp_path / "result.json").read_text())
    assert list(stored) == list(SuiteResult.__struct_fields__)
    assert {"trace", "seed", "speedup", "engines", "runs"} <= set(stored)
    assert list(stored["runs"][0]["ttft_s"]) == ["mean", "p50", "p90", "p99"]


def test_a_picture_is_drawn(tmp_path):
    runs = [summary([outcome(0)], policy=p) for p in ("round_robin", "least_prefill")]
    result = SuiteResult(**SUITE_FIELDS, runs=runs)
    draw(tmp_path / "plot.png", result, {(r.policy, r.load): [0.5, 1.0] for r in runs})
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_machine_class_names_the_cores():
    assert " cores, " in machine_class()
