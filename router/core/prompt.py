"""Prompt keys: from a request body to the block hashes that name its prefix.

The body is decoded once and only for routing; it travels on byte for byte. A prompt gets the most
exact key that can be had: token ids as sent, token ids from the model's tokenizer, or blocks of
its text. Text keys never meet token keys: their namespaces differ.
"""

import json
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from indexer.core.blocks import block_hashes, chain_hashes, namespace_hash
from router.core.errors import RequestError

CHARACTERS_PER_TOKEN = 4  # the usual figure for English, used only where no tokenizer is at hand


class RoutingFields(msgspec.Struct):
    """What of a body matters for routing; everything else is left to the engine."""

    model: Any = None
    prompt: Any = None
    # Raw cannot be in a union, so absent is empty here, and null is a text like any other.
    messages: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: Any = None
    stream: Any = None


class PromptKey(msgspec.Struct, frozen=True):
    """The name of a prompt's prefix."""

    kind: str  # "tokens", "text" or "none"
    tokens: int  # prompt length; an estimate for text
    hashes: Sequence[int]  # of every full block, chained
    block_tokens: int  # tokens a hash stands for
    reason: str = ""  # why there is no exact key; "" for token keys


class Tokenizer(Protocol):
    """Turns what a client sends into the token ids that the engine will see."""

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of a completion prompt, special tokens included as the engine adds them."""

    def render_chat(self, messages: Any, tools: Any) -> str | None:
        """The chat as one prompt text, or None when there is no template for it."""

    def encode_chat(self, rendered: str) -> Sequence[int]:
        """Token ids of a rendered chat, without further special tokens."""


_decoder = msgspec.json.Decoder(RoutingFields)


def parse_body(body: bytes) -> RoutingFields:
    """The routing fields of a JSON body.

    Raises:
        RequestError: the body is not a JSON object.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _parse_leniently(body, error)


def _parse_leniently(body: bytes, error: Exception) -> RoutingFields:
    """What engines accept beyond strict JSON (NaN, a lone surrogate, a byte order mark) passes.

    Such a body gets no prompt key: it is the engine's to judge, and rare.
    """
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise RequestError(
            f"request body is not a JSON object: {error}", code="bad_json"
        ) from error
    return RoutingFields(model=decoded.get("model"), stream=decoded.get("stream"))


class PromptKeys:
    """Makes prompt keys for one deployment: block size, secret and tokenizer are fixed."""

    def __init__(
        self, block_tokens: int, tokenizer: Tokenizer | None = None, secret: str = ""
    ) -> None:
        self.block_tokens = block_tokens
        self._tokenizer = tokenizer
        self._secret = secret

    def key(self, fields: RoutingFields, model: str) -> PromptKey:
        """The key of a completion or chat body; kind "none" where it has no usable prompt.

        Args:
            fields: from `parse_body`.
            model: served model name, the one that relays announce.
        """
        salt = fields.cache_salt if isinstance(fields.cache_salt, str) else ""
        if _is_given(fields.messages):
            return self._chat_key(fields.messages, fields.tools, model, salt)
        text = _single_text(fields.prompt)
        if text is not None:
            return self._completion_key(text, model, salt)
        ids = _single_id_list(fields.prompt)
        if ids is None:
            return self._none("prompt is neither text nor one list of token ids")
        return self._token_key(ids, model, salt)

    def _completion_key(self, prompt: str, model: str, salt: str) -> PromptKey:
        if self._tokenizer is None:
            return self._text_key(prompt.encode(), model, salt, "no tokenizer")
        return self._token_key(self._tokenizer.encode(prompt), model, salt)

    def _chat_key(
        self, messages: msgspec.Raw, tools: msgspec.Raw, model: str, salt: str
    ) -> PromptKey:
        rendered = None if self._tokenizer is None else _render(self._tokenizer, messages, tools)
        if self._tokenizer is None or rendered is None:
            reason = "no tokenizer" if self._tokenizer is None else "chat cannot be rendered"
            # Without its closing bracket, a chat's JSON is a prefix of the next turn's.
            head = bytes(tools) if _is_given(tools) else b""
            text = head + bytes(messages).rstrip().removesuffix(b"]")
            return self._text_key(text, model, salt, reason)
        return self._token_key(self._tokenizer.encode_chat(rendered), model, salt)

    def _token_key(self, ids: Sequence[int], model: str, salt: str) -> PromptKey:
        seed = namespace_hash(model, cache_salt=salt, secret=self._secret)
        try:
            hashes = block_hashes(ids, self.block_tokens, seed)
        except (OverflowError, TypeError):
            return self._none("prompt holds numbers that are no token ids")
        return PromptKey("tokens", len(ids), hashes, self.block_tokens)

    def _text_key(self, text: bytes, model: str, salt: str, reason: str) -> PromptKey:
        seed = namespace_hash("text/" + model, cache_salt=salt, secret=self._secret)
        block_bytes = CHARACTERS_PER_TOKEN * self.block_tokens
        hashes = chain_hashes(text, block_bytes, seed)
        tokens = len(text) // CHARACTERS_PER_TOKEN
        return PromptKey("text", tokens, hashes, self.block_tokens, reason)

    def _none(self, reason: str) -> PromptKey:
        return PromptKey("none", 0, (), self.block_tokens, reason)


def _is_given(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in {b"", b"null"}


def _render(tokenizer: Tokenizer, messages: msgspec.Raw, tools: msgspec.Raw) -> str | None:
    decoded = msgspec.json.decode(messages)
    if not isinstance(decoded, list):
        return None
    return tokenizer.render_chat(decoded, msgspec.json.decode(tools) if _is_given(tools) else None)


def _single_text(prompt: Any) -> str | None:
    """The text of `"…"` or `["…"]`; None for anything else."""
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    return prompt if isinstance(prompt, str) else None


def _single_id_list(prompt: Any) -> Sequence[int] | None:
    """The ids of `[1, 2, …]` or `[[1, 2, …]]`; None for anything else."""
    if not isinstance(prompt, list) or not prompt:
        return None
    if len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    return prompt if prompt and isinstance(prompt[0], int) else None
