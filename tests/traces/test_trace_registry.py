import pytest

from bench.traces.record import TraceError
from bench.traces.registry import KNOWN_TRACES, load_trace, traces_folder

LINE = '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]}\n'


def test_folder_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("WARMROUTE_TRACES", str(tmp_path))
    assert traces_folder() == tmp_path
    monkeypatch.delenv("WARMROUTE_TRACES")
    assert traces_folder().parts[-2:] == ("shared", "traces")


def test_absent_conversation_is_replaced_by_the_lookalike(monkeypatch, tmp_path):
    monkeypatch.setenv("WARMROUTE_TRACES", str(tmp_path))
    trace = load_trace("conversation", generated_requests=40, seed=1)
    assert (trace.origin, len(trace.requests)) == ("generated", 40)
    with pytest.raises(TraceError, match="WARMROUTE_TRACES"):
        load_trace("synthetic", generated_requests=40, seed=1)


def test_a_changed_file_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("WARMROUTE_TRACES", str(tmp_path))
    (tmp_path / KNOWN_TRACES["conversation"].file).write_text(LINE)
    with pytest.raises(TraceError, match="sha256"):
        load_trace("conversation", generated_requests=40, seed=1)


def test_any_mooncake_file_by_path(tmp_path):
    (tmp_path / "own.jsonl").write_text(LINE)
    trace = load_trace(str(tmp_path / "own.jsonl"), generated_requests=1, seed=1)
    assert (trace.name, trace.origin, len(trace.requests)) == ("own.jsonl", "file", 1)
    with pytest.raises(TraceError, match="neither a file nor one of"):
        load_trace("nonsense", generated_requests=1, seed=1)
