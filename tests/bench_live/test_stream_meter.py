from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_target import content, sse, usage

from bench.live.stream import StreamError, StreamMeter, Usage

ROLE = sse({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
CHAT = sse({"choices": [{"delta": {"content": "hi"}}]})
GOOD = b": ping\r\n\r\n" + ROLE + CHAT + content("x") * 400 + usage(10, 4, 401) + sse("[DONE]")


def fed(*chunks):
    meter = StreamMeter()
    for now_s, chunk in enumerate(chunks):
        meter.feed(chunk, float(now_s))
    return meter


def test_first_content_is_not_the_first_line():
    meter = fed(b": ping\n\n", ROLE, content(""), CHAT[:9], CHAT[9:-2], CHAT[-2:], content("x"))
    assert meter.first_content_s == 5.0
    assert meter.last_chunk_s == 6.0


@given(st.lists(st.integers(1, len(GOOD) - 1), max_size=12))
def test_usage_however_the_stream_is_split(cuts):
    edges = [0, *sorted(cuts), len(GOOD)]
    meter = fed(*(GOOD[a:b] for a, b in pairwise(edges)))
    assert meter.usage() == Usage(prompt_tokens=10, cached_tokens=4, output_tokens=401)
    assert meter.first_content_s is not None


def test_no_details_means_nothing_cached():
    plain = sse({"choices": [], "usage": {"prompt_tokens": 7, "prompt_tokens_details": None}})
    assert fed(plain + sse("[DONE]")).usage() == Usage(7, 0, 0)


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"", r"without \[DONE\]"),
        (content("data: [DONE]"), r"without \[DONE\]"),
        (content("x") + sse("[DONE]"), "no usage"),
        (sse({"error": {"message": "boom"}}), "boom"),
        (b"data: {broken\n\ndata: [DONE]\n\n", "no usage"),
    ],
)
def test_what_is_no_complete_answer(stream, reason):
    with pytest.raises(StreamError, match=reason):
        fed(stream).usage()
