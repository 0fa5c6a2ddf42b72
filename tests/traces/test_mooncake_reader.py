import json

import pytest

from bench.traces.mooncake import read_mooncake
from bench.traces.record import TraceError

GOOD = {"timestamp": 1500, "input_length": 700, "output_length": 3, "hash_ids": [0, 7]}


def written(tmp_path, *rows):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_reads_what_the_line_says(tmp_path):
    (request,) = read_mooncake(written(tmp_path, GOOD))
    assert request.arrival_s == 1.5
    assert (request.input_tokens, request.output_tokens) == (700, 3)
    assert (request.block_ids, request.block_tokens, request.session) == ((0, 7), 512, 7)
    assert [request.tokens_of_block(j) for j in (0, 1)] == [512, 188]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "truncated"),
        (GOOD | {"hash_ids": [0]}, "1 hash_ids, but 700 tokens are 2 blocks"),
        (GOOD | {"hash_ids": [0, 7, 8]}, "3 hash_ids"),
        (GOOD | {"input_length": 0}, "input_length"),
        (GOOD | {"output_length": "3"}, "output_length"),
        (GOOD | {"hash_ids": [0, -7]}, "hash_ids"),
        (GOOD | {"extra": 1}, "extra"),
        (GOOD | {"timestamp": 1499}, "before the line above"),
        ("", "truncated"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, problem):
    path = written(tmp_path, GOOD, line, GOOD)
    with pytest.raises(TraceError, match=problem) as caught:
        read_mooncake(path)
    assert f"{path}:2: " in str(caught.value)


def test_an_empty_or_absent_file_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no requests"):
        read_mooncake(written(tmp_path))
    with pytest.raises(TraceError, match=r"absent\.jsonl"):
        read_mooncake(tmp_path / "absent.jsonl")
