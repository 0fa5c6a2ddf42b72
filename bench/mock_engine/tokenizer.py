"""Text to token ids and back, and chat messages to text.

Without a tokenizer file each UTF-8 byte is one token (its value + 3) and chats are rendered as

    <|role|>
    content
    <|assistant|>

with one `<|role|>` line and the content, each ended by a newline, for every message, and the last
line, the generation prompt, only when it is asked for. Tools, if any, come first under `<|tools|>`
as one JSON line. A tokenizer folder with a chat template renders with that instead.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

_BYTE_OFFSET: Final = 3
_BYTE_VOCABULARY: Final = 256 + _BYTE_OFFSET
_PIECES_MAX: Final = 4096  # enough variety; scanning a whole vocabulary would slow the start
_WORD_MARKS: Final = ("\u0120", "\u2581")  # how byte-level BPE and SentencePiece write a space

Message = dict[str, Any]


class TemplateError(ValueError):
    """The messages cannot be rendered; the text says why."""


class Piece(msgspec.Struct, frozen=True):
    """A token that the engine may generate."""

    token_id: int
    text: str
    json: bytes  # the text as a JSON string, with its quotes


class ChatTemplate(Protocol):
    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        extra: dict[str, Any],
    ) -> str:
        """The text of a chat.

        Raises:
            TemplateError: the template refuses these messages.
        """


class Tokenizer(Protocol):
    template: ChatTemplate
    pieces: Sequence[Piece]  # what generated tokens are drawn from
    id_limit: int | None  # ids from here on are not in the vocabulary; None: any u32 is taken

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class PlainTemplate:
    """The fixed template in the module's description."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        extra: dict[str, Any],  # noqa: ARG002 - a fixed template has no arguments
    ) -> str:
        parts = [f"<|tools|>\n{json.dumps(tools)}\n"] if tools else []
        parts += [f"<|{message['role']}|>\n{message['content']}\n" for message in messages]
        if add_generation_prompt:
            parts.append("<|assistant|>\n")
        return "".join(parts)


class ByteTokenizer:
    """One token for each byte. Ids that are no bytes are accepted and decode to U+FFFD."""

    def __init__(self) -> None:
        self.template: ChatTemplate = PlainTemplate()
        self.pieces: Sequence[Piece] = [
            _piece(byte + _BYTE_OFFSET, chr(byte)) for byte in b"abcdefghijklmnopqrstuvwxyz "
        ]
        # Replays of recorded workloads bring ids of their own, so any id is let through.
        self.id_limit: int | None = None

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:  # noqa: ARG002 - has none
        return [byte + _BYTE_OFFSET for byte in text.encode(errors="replace")]

    def decode(self, token_ids: Sequence[int]) -> str:
        unknown = "\ufffd".encode()
        parts = (
            bytes((token_id - _BYTE_OFFSET,))
            if _BYTE_OFFSET <= token_id < _BYTE_VOCABULARY
            else unknown
            for token_id in token_ids
        )
        return b"".join(parts).decode(errors="replace")


class HfTokenizer:
    """A `tokenizer.json`, with the chat template beside it if there is one.

    Args:
        path: the file or the folder that holds it.

    Raises:
        ValueError: the file is missing or not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        # Optional dependency: only needed when a tokenizer is given.
        import tokenizers  # noqa: PLC0415

        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise ValueError(f"tokenizer: {file} is not a file")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"tokenizer: {file}: {error}") from error
        self.template: ChatTemplate = _folder_template(file.parent) or PlainTemplate()
        self.pieces: Sequence[Piece] = _word_pieces(self._tokenizer)
        self.id_limit: int | None = self._tokenizer.get_vocab_size()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        clean = text.encode(errors="replace").decode()
        ids: list[int] = self._tokenizer.encode(clean, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text


class JinjaTemplate:
    """A model's own chat template, rendered in a sandbox the way Transformers does.

    Args:
        source: the template.
        names: variables it may use, such as `bos_token`.
    """

    def __init__(self, source: str, names: dict[str, Any]) -> None:
        # Optional dependency: only needed when a tokenizer folder brings a template.
        from jinja2 import ext, sandbox  # noqa: PLC0415

        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_template_error
        self._template = environment.from_string(source)
        self._names = names

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        extra: dict[str, Any],
    ) -> str:
        variables = {**self._names, **extra, "messages": messages, "tools": tools}
        try:
            return str(
                self._template.render(variables, add_generation_prompt=add_generation_prompt)
            )
        except Exception as error:  # a template may fail in any way on odd messages
            raise TemplateError(f"chat template: {error}") from error


def load_tokenizer(path: str | None) -> Tokenizer:
    """The tokenizer at `path`, or the byte tokenizer for None.

    Raises:
        ValueError: there is no tokenizer at `path`.
    """
    return ByteTokenizer() if path is None else HfTokenizer(Path(path))


def _piece(token_id: int, text: str) -> Piece:
    return Piece(token_id, text, msgspec.json.encode(text))


def _word_pieces(tokenizer: Any) -> list[Piece]:
    """Tokens that are one lower-case word behind a space, so that text encodes back to them."""
    pieces: list[Piece] = []
    for token_id in range(tokenizer.get_vocab_size()):
        token = tokenizer.id_to_token(token_id) or ""
        word = token[1:]
        if token[:1] in _WORD_MARKS and word.isascii() and word.isalpha() and word.islower():
            pieces.append(_piece(token_id, " " + word))
        if len(pieces) == _PIECES_MAX:
            return pieces
    return pieces or _plain_pieces(tokenizer)


def _plain_pieces(tokenizer: Any) -> list[Piece]:
    ids = range(min(tokenizer.get_vocab_size(), _PIECES_MAX))
    texts = ((token_id, tokenizer.decode([token_id])) for token_id in ids)
    pieces = [_piece(token_id, text) for token_id, text in texts if text]
    if not pieces:
        raise ValueError("tokenizer: no token of its vocabulary decodes to text")
    return pieces


def _folder_template(folder: Path) -> JinjaTemplate | None:
    config_file, template_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = json.loads(config_file.read_text()) if config_file.is_file() else {}
    source = template_file.read_text() if template_file.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several by name
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    if not source:
        return None
    return JinjaTemplate(source, _special_tokens(config))


def _special_tokens(config: dict[str, Any]) -> dict[str, Any]:
    tokens = {name: value for name, value in config.items() if name.endswith("_token")}
    return {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in tokens.items()
    }


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_template_error(message: str) -> None:
    raise TemplateError(message)
