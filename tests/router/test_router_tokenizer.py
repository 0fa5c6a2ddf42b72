"""Tokenizers and chat templates from a model's files."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_harness import Engine, ask, metric, routed

from router.config import ConfigError
from router.core.prompt import parse_body
from router.keys import KeyMaker
from router.tokenizer import load_tokenizer
from router.usage import TAIL_BYTES, AnswerTail, can_report_usage

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}\n"
    "  {% if m.role == 'bad' %}{{ raise_exception('no') }}{% endif %}\n"
    "<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors

    vocabulary = {"<s>": 0, "<unk>": 1, "hello": 2, "world": 3}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def configure(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_special_tokens_for_completions_only_and_no_truncation(folder):
    for path in (folder, folder / "tokenizer.json"):
        tokenizer = load_tokenizer(str(path))
        assert tokenizer.encode("hello world hello") == [0, 2, 3, 2]
        assert tokenizer.encode_chat("hello world") == [2, 3]
        assert tokenizer.render_chat([], None) is None


def test_a_chat_is_rendered_as_the_ecosystem_does(folder):
    configure(folder, chat_template=TEMPLATE, bos_token={"content": "<s>"})
    tokenizer = load_tokenizer(str(folder))
    chat = [{"role": "user", "content": " hi "}]
    assert tokenizer.render_chat(chat, None) == "<s><user>hi\n<assistant>"
    assert tokenizer.render_chat(chat, [{"a": "<é>"}]) == '<s><user>hi\n[{"a": "<é>"}]<assistant>'


def test_a_template_that_refuses_a_chat_gives_no_text(folder):
    configure(folder, chat_template=TEMPLATE)
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.render_chat([{"role": "bad"}], None) is None
    assert tokenizer.failed_renders == 1


def test_a_template_is_found_where_models_keep_it(folder):
    configure(folder, chat_template=[{"name": "default", "template": "named"}])
    assert load_tokenizer(str(folder)).render_chat([], None) == "named"
    (folder / "chat_template.jinja").write_text("own {{ strftime_now('%Y') | length }}")
    assert load_tokenizer(str(folder)).render_chat([], None) == "own 4"


def test_a_template_cannot_reach_out(folder):
    configure(folder, chat_template="{{ messages.__class__.__mro__ }}{{ messages.append(1) }}")
    assert load_tokenizer(str(folder)).render_chat([], None) is None


def test_what_cannot_be_loaded_is_a_configuration_error(folder, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="no file"):
        load_tokenizer(str(tmp_path / "nothing"))
    configure(folder, chat_template="{% broken")
    with pytest.raises(ConfigError, match="chat template"):
        load_tokenizer(str(folder))
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json"):
        load_tokenizer(str(folder))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"warmroute\[tokenizer\]"):
        load_tokenizer(str(folder))


async def test_a_router_with_a_tokenizer_makes_token_keys(folder):
    configure(folder, chat_template=TEMPLATE)
    async with routed(Engine(), tokenizer=str(folder)) as router:
        body = {"model": "m", "messages": [{"role": "user", "content": "hello " * 2000}]}
        await ask(router, "POST", "/v1/chat/completions", json.dumps(body).encode())
        assert metric(router, "keys_total", kind="tokens") == 1


async def test_a_busy_tokenizer_gives_way_to_text_keys(folder):
    keys = KeyMaker(4, load_tokenizer(str(folder)), "", 1)
    fields = parse_body(b'{"prompt":"hello world"}')
    assert (await keys.key(fields, "m", 10_000)).kind == "tokens"
    keys._waiting = 10_000
    assert (await keys.key(fields, "m", 10_000)).kind == "text"
    keys.close()


USAGE = b'"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens": %d}}}'


@given(st.binary(max_size=9000), st.integers(0, 10**9), st.lists(st.integers(1, 5000)), st.data())
def test_the_tail_finds_what_the_last_bytes_say(noise, count, sizes, data):
    noise = noise.replace(b"cached", b"")
    whole = noise + USAGE % count + b"\n\ndata: [DONE]\n\n"
    tail, position = AnswerTail(), 0
    for size in [*sizes, len(whole)]:
        if position < len(whole):
            tail.add(whole[position : position + size])
            position += size
    assert tail.cached_tokens() == count


def test_generated_text_is_not_taken_for_usage():
    tail = AnswerTail()
    tail.add(rb'{"text":"\"cached_tokens\": 7"}')
    assert tail.cached_tokens() is None


def test_the_tail_stays_small():
    tail = AnswerTail()
    for _ in range(10_000):
        tail.add(b"x" * 100)
    assert sum(map(len, tail._chunks)) < TAIL_BYTES + 200


def test_only_readable_answers_are_looked_at():
    assert can_report_usage([("Content-Type", "application/json")])
    assert can_report_usage([("content-type", "text/event-stream; charset=utf-8")])
    assert not can_report_usage([("content-type", "audio/mpeg")])
    assert not can_report_usage([("content-type", "application/json"), ("content-encoding", "br")])
