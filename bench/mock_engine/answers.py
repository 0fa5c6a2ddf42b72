"""Response bodies and stream chunks, with all that is constant built once for each request."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from bench.mock_engine.engine_loop import Generation
from bench.mock_engine.faults import Faults
from bench.mock_engine.tokenizer import Piece

DONE: Final = b"data: [DONE]\n\n"
_TEXT_MARK: Final = "\ue000"  # stands for the token's text while a chunk is taken apart


class AnswerHead(msgspec.Struct, frozen=True):
    """What all parts of one answer share."""

    response_id: str
    created: int  # Unix seconds
    model: str
    chat: bool

    def fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    @property
    def stream_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"


def usage(generations: Sequence[Generation]) -> dict[str, Any]:
    """Token counts over all prompts of one request."""
    prompt_tokens = sum(generation.prompt.prompt_tokens for generation in generations)
    completion_tokens = sum(len(generation.prompt.output) for generation in generations)
    cached_tokens = sum(generation.cached_tokens for generation in generations)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def whole_answer(head: AnswerHead, generations: Sequence[Generation]) -> bytes:
    """The body of an answer that is not streamed."""
    kind = "chat.completion" if head.chat else "text_completion"
    choices = [
        _whole_choice(head.chat, index, "".join(piece.text for piece in generation.prompt.output))
        for index, generation in enumerate(generations)
    ]
    return msgspec.json.encode(
        {**head.fields(kind), "choices": choices, "usage": usage(generations)}
    )


def usage_event(head: AnswerHead, generations: Sequence[Generation]) -> bytes:
    """The last chunk of a stream whose client asked for usage."""
    return _event({**head.fields(head.stream_kind), "choices": [], "usage": usage(generations)})


class TokenStream:
    """Writes one choice of a stream to the client's connection, one chunk for each token.

    Chunks go straight to the transport in HTTP chunked coding. A client that does not read makes
    the transport's buffer grow; it is bounded by the length of the answer.

    Args:
        transport: the connection, its response header already sent.
        head: shared fields.
        index: of the choice.
        output: the tokens to come.
        faults: `reset_after_tokens` is read at every token.
    """

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        head: AnswerHead,
        index: int,
        output: Sequence[Piece],
        faults: Faults,
    ) -> None:
        self._transport = transport
        self._faults = faults
        self._chunks = _chunks(head, index, output)
        self._sent = 0

    def emit(self) -> None:
        """Sends the next token."""
        if self._transport.is_closing():
            return
        if self._sent == self._faults.reset_after_tokens:
            self._transport.abort()
            return
        self._sent += 1
        data = next(self._chunks)
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def _chunks(head: AnswerHead, index: int, output: Sequence[Piece]) -> Iterator[bytes]:
    before, after = _token_event(head, index, last=False)
    last_before, last_after = _token_event(head, index, last=True)
    # A chat opens with the role, sent together with its first token.
    opening = _role_event(head, index) if head.chat else b""
    for piece in output[:-1]:
        yield opening + before + piece.json + after
        opening = b""
    yield opening + last_before + output[-1].json + last_after


def _token_event(head: AnswerHead, index: int, last: bool) -> tuple[bytes, bytes]:
    """What stands before and behind the text in a token's chunk."""
    if head.chat:
        choice = {"index": index, "delta": {"content": _TEXT_MARK}, "logprobs": None}
    else:
        choice = {"index": index, "text": _TEXT_MARK, "logprobs": None}
    choice["finish_reason"] = "length" if last else None
    if last or not head.chat:
        choice["stop_reason"] = None
    chunk = {**head.fields(head.stream_kind), "choices": [choice]}
    if not head.chat:
        chunk["usage"] = None
    before, _, after = _event(chunk).partition(msgspec.json.encode(_TEXT_MARK))
    return before, after


def _role_event(head: AnswerHead, index: int) -> bytes:
    choice = {
        "index": index,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    return _event({**head.fields(head.stream_kind), "choices": [choice]})


def _whole_choice(chat: bool, index: int, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "tool_calls": []}
    content = {"message": message} if chat else {"text": text}
    end = {"logprobs": None, "finish_reason": "length", "stop_reason": None}
    return {"index": index, **content, **end}


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
