"""Prompt keys: one name for one prefix, and nothing refused that an engine would take."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.core.blocks import block_hashes, namespace_hash
from router.core.errors import RequestError
from router.core.prompt import PromptKeys, parse_body


class LetterTokenizer:
    def encode(self, text):
        return [0, *map(ord, text)]

    def render_chat(self, messages, tools):
        return json.dumps([tools, messages]) if isinstance(messages, list) else None

    def encode_chat(self, rendered):
        return list(map(ord, rendered))


def key_of(body, tokenizer=None, model="m", secret=""):
    return PromptKeys(4, tokenizer, secret).key(parse_body(json.dumps(body).encode()), model)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_token_ids_are_named_as_relays_name_them(ids):
    key = key_of({"prompt": ids})
    assert (key.kind, key.tokens) == ("tokens", len(ids))
    assert list(key.hashes) == block_hashes(ids, 4, namespace_hash("m"))
    assert key_of({"prompt": [ids]}) == key


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_longer_text_keeps_the_keys_of_its_beginning(head, tail):
    one, two = key_of({"prompt": head}), key_of({"prompt": head + tail})
    assert list(two.hashes[: len(one.hashes)]) == list(one.hashes)
    assert one.kind == "text"


def chat(*contents):
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def test_the_next_turn_of_a_chat_keeps_the_keys_of_the_one_before():
    for tokenizer in (None,):
        one = key_of(chat("a" * 100), tokenizer)
        two = key_of(chat("a" * 100, "more"), tokenizer)
        assert len(one.hashes) > 4
        assert list(two.hashes[: len(one.hashes)]) == list(one.hashes)


def test_tools_are_part_of_a_chats_prefix():
    plain, tooled = chat("a" * 100), {**chat("a" * 100), "tools": [{"type": "function"}]}
    assert not set(key_of(plain).hashes) & set(key_of(tooled).hashes)
    assert key_of({**plain, "tools": None}) == key_of(plain)


def test_with_a_tokenizer_text_becomes_tokens():
    text = key_of({"prompt": "hello world"}, LetterTokenizer())
    assert (text.kind, text.tokens) == ("tokens", 12)
    assert text == key_of({"prompt": ["hello world"]}, LetterTokenizer())
    assert text == key_of({"prompt": [0, *map(ord, "hello world")]})
    assert key_of(chat("hi"), LetterTokenizer()).kind == "tokens"
    assert key_of({"messages": {"no": "list"}}, LetterTokenizer()).kind == "text"


@pytest.mark.parametrize(
    "prompt", [None, [], ["a", "b"], [[1], [2]], [-1], [2**32], [1.5], [1, "a"], 7, {}, True]
)
def test_what_has_no_single_prompt_has_no_key(prompt):
    key = key_of({"prompt": prompt})
    assert (key.kind, list(key.hashes)) == ("none", [])
    assert key.reason


def test_names_differ_by_model_salt_and_secret():
    body = {"prompt": [1, 2, 3, 4]}
    keys = [
        key_of(body),
        key_of(body, model="n"),
        key_of({**body, "cache_salt": "s"}),
        key_of(body, secret="x"),
    ]
    assert len({key.hashes[0] for key in keys}) == 4


@given(
    st.dictionaries(
        st.sampled_from(["prompt", "messages", "tools", "cache_salt", "model", "stream", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=10,
        ),
    )
)
def test_any_json_object_is_taken(body):
    fields = parse_body(json.dumps(body).encode())
    for tokenizer in (None, LetterTokenizer()):
        key = PromptKeys(4, tokenizer).key(fields, "m")
        assert len(key.hashes) <= key.tokens // 4 + 1


@given(st.binary(max_size=50))
def test_anything_else_is_the_clients_error(body):
    try:
        taken = isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        taken = False
    if taken:
        parse_body(body)
    else:
        with pytest.raises(RequestError):
            parse_body(body)
