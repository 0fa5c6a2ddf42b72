"""A model's own tokenizer and chat template, from the files that come with it."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from router.config import ConfigError


class FileTokenizer:
    """Implements `router.core.prompt.Tokenizer` with tokenizer.json and a Jinja chat template."""

    def __init__(
        self,
        encode: Callable[[str, bool], Sequence[int]],
        render: Callable[[Any, Any], str] | None,
    ) -> None:
        """`encode` takes (text, add special tokens); `render` takes (messages, tools)."""
        self._encode = encode
        self._render = render
        self.failed_renders = 0

    def encode(self, text: str) -> Sequence[int]:
        return self._encode(text, True)

    def render_chat(self, messages: Any, tools: Any) -> str | None:
        if self._render is None:
            return None
        try:
            return self._render(messages, tools)
        except Exception:  # noqa: BLE001 - a template may raise anything on odd messages
            self.failed_renders += 1
            return None

    def encode_chat(self, rendered: str) -> Sequence[int]:
        return self._encode(rendered, False)


def load_tokenizer(path: str) -> FileTokenizer:
    """The tokenizer in a model's folder, or the one that a tokenizer.json holds.

    Raises:
        ConfigError: a file or the package that reads it is missing, or it cannot be read.
    """
    given = Path(path)
    folder = given if given.is_dir() else given.parent
    file = given / "tokenizer.json" if given.is_dir() else given
    encode = _load_encoder(file)
    settings = _read_settings(folder / "tokenizer_config.json")
    template = _read_template(folder, settings)
    return FileTokenizer(encode, None if template is None else _renderer(template, settings))


def _load_encoder(file: Path) -> Callable[[str, bool], Sequence[int]]:
    try:
        import tokenizers  # noqa: PLC0415 - an extra, needed only with --tokenizer
    except ImportError as error:
        raise _missing_extra("tokenizers") from error
    if not file.is_file():
        raise ConfigError(f"tokenizer: no file {file}")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises bare Exception
        raise ConfigError(f"tokenizer: {file}: {error}") from error
    # Both are settings of training; an engine sees the whole prompt and nothing added to it.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str, special: bool) -> Sequence[int]:
        ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    return encode


def _read_settings(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"tokenizer: {file}: {error}") from error
    return settings if isinstance(settings, dict) else {}


def _read_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {each.get("name"): each.get("template") for each in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _renderer(template: str, settings: Mapping[str, Any]) -> Callable[[Any, Any], str]:
    """Renders as `apply_chat_template` of transformers does, generation prompt included."""
    try:
        from jinja2 import TemplateError, ext  # noqa: PLC0415 - an extra, like tokenizers
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
    except ImportError as error:
        raise _missing_extra("jinja2") from error

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        compiled = environment.from_string(template)
    except TemplateError as error:
        raise ConfigError(f"tokenizer: chat template: {error}") from error
    special = {name: _token_text(settings.get(name)) for name in _SPECIAL_TOKENS}

    def render(messages: Any, tools: Any) -> str:
        return str(
            compiled.render(messages=messages, tools=tools, add_generation_prompt=True, **special)
        )

    return render


_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def _token_text(token: Any) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _missing_extra(package: str) -> ConfigError:
    return ConfigError(
        f"tokenizer: package {package} is missing; install it with "
        "pip install 'warmroute[tokenizer]'"
    )
