import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.mock_engine.prompts import PromptBuilder
from bench.mock_engine.tokenizer import ByteTokenizer, TemplateError, load_tokenizer

WORDS = ["\u0120one", "\u0120two", "\u0120three", "<s>", "\u0120Big", "x"]


@pytest.fixture
def folder(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


CHAT = [{"role": "user", "content": "one"}]


def test_bytes_are_reversible():
    tokenizer = ByteTokenizer()
    text = "gr\u00fc\u00df \U0001f600\n"
    assert tokenizer.decode(tokenizer.encode(text, True)) == text
    assert tokenizer.encode("\ud800", True) == [ord("?") + 3]


def test_tools_are_rendered_in_front():
    text = ByteTokenizer().template.render(CHAT, [{"name": "f"}], False, {})
    assert text == '<|tools|>\n[{"name": "f"}]\n<|user|>\none\n'


def test_generated_text_encodes_back_to_its_tokens(folder):
    tokenizer = load_tokenizer(str(folder))
    assert [piece.text for piece in tokenizer.pieces] == [" one", " two", " three"]
    prompt = PromptBuilder("m", 4, tokenizer.pieces, 0, 0).prepare([0, 1], 9, "")
    text = "".join(piece.text for piece in prompt.output)
    assert tokenizer.encode(text, False) == list(prompt.token_ids[2:])
    assert tokenizer.decode(list(prompt.token_ids[2:])) == text
    assert tokenizer.id_limit == len(WORDS)


def test_a_vocabulary_without_words_is_used_as_it_is(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    assert [piece.text for piece in load_tokenizer(str(file)).pieces] == ["a", "b"]


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{{ mood }}"
    "{% if messages|length > 1 %}{{ raise_exception('too many') }}{% endif %}"
    "{% if tools %}{{ tools|tojson }}{% endif %}"
)


@pytest.mark.parametrize("place", ["file", "config", "named"])
def test_the_models_own_template_renders(folder, place):
    config = {"bos_token": {"content": "<s>"}}
    if place == "file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    elif place == "config":
        config["chat_template"] = TEMPLATE
    else:
        config["chat_template"] = [{"name": "default", "template": TEMPLATE}]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    template = load_tokenizer(str(folder)).template
    assert template.render(CHAT, None, True, {"mood": "!"}) == "<s>[user] one[assistant]!"
    assert template.render(CHAT, ["\u00e9"], False, {}) == '<s>[user] one["\u00e9"]'
    with pytest.raises(TemplateError, match="too many"):
        template.render(CHAT * 2, None, True, {})


async def test_an_engine_with_a_tokenizer_checks_ids(folder, run_engine):
    async with run_engine(tokenizer=str(folder)) as client:
        error = await client.json("/v1/completions", {"prompt": [6]}, status=400)
        assert "vocabulary" in error["error"]["message"]
        answer = await client.complete("one two", max_tokens=2)
        assert answer["usage"]["prompt_tokens"] == 2


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load_tokenizer(str(file))
