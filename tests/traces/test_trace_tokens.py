import json

from bench.traces.record import TraceRequest
from bench.traces.tokens import VOCABULARY, PromptTokens, completion_body


def request(input_tokens, *block_ids):
    return TraceRequest(0.0, input_tokens, 5, block_ids, 512, 0)


def test_equal_ids_give_equal_tokens_cut_to_the_length():
    tokens = PromptTokens(1, 512)
    short, long = tokens.of_prompt(request(600, 0, 9)), tokens.of_prompt(request(1500, 0, 9, 4))
    assert (len(short), len(long)) == (600, 1500)
    assert long[:600] == short
    assert all(0 <= token < VOCABULARY for token in long)
    assert len(set(tokens.of_block(0)) & set(tokens.of_block(9))) < 50


def test_deterministic_and_apart_in_another_namespace():
    assert PromptTokens(1, 512).of_block(3) == PromptTokens(1, 512).of_block(3)
    assert PromptTokens(1, 512).of_block(3) != PromptTokens(2, 512).of_block(3)


def test_json_is_the_prompt_also_from_the_cache():
    tokens = PromptTokens(1, 512)
    for prompt in (request(1024, 0, 1), request(1024, 0, 1), request(600, 0, 1), request(7, 0)):
        assert json.loads(tokens.json_array(prompt)) == tokens.of_prompt(prompt)


def test_body_is_a_streaming_completion():
    body = json.loads(completion_body(b"[1,2]", model='m"1', max_tokens=7))
    assert body["prompt"] == [1, 2]
    assert (body["model"], body["max_tokens"], body["stream"]) == ('m"1', 7, True)
    assert body["stream_options"] == {"include_usage": True}
