"""What clients may ask for, checked strictly, and how errors look (vLLM's shape)."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from bench.mock_engine.tokenizer import Message

# vLLM lets a completion without max_tokens end after 16 tokens and a chat run to the model's end.
# The mock never ends by itself, so a chat gets a fixed length.
COMPLETION_TOKENS: Final = 16
CHAT_TOKENS: Final = 128

_ERROR_TYPES: Final = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
CacheSalt = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Body = TypeVar("Body")


class RequestError(Exception):
    """An answer other than 200.

    Args:
        status: HTTP status, 400 to 599.
        message: what the client should read.
        param: the field at fault, if one is.
    """

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> bytes:
        detail = {
            "message": str(self),
            "type": _ERROR_TYPES[self.status],
            "param": self.param,
            "code": self.status,
        }
        return msgspec.json.encode({"error": detail})


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that both generation endpoints take; unknown ones are ignored, as in vLLM."""

    model: str | None = None
    max_tokens: PositiveInt | None = None
    n: PositiveInt | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: CacheSalt | None = None

    def check(self) -> None:
        """Refuses what no mock engine does.

        Raises:
            RequestError: 400.
        """
        if self.n is not None and self.n > 1:
            raise RequestError(400, "the mock engine generates one choice: n must be 1", "n")
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                400, "Stream options can only be defined when `stream=True`.", "stream_options"
            )

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]]

    @property
    def output_tokens(self) -> int:
        return self.max_tokens or COMPLETION_TOKENS

    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one.

        Raises:
            RequestError: 400 for an empty or a mixed list.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(item) for item in self.prompt}
        if len(kinds) != 1:
            raise RequestError(400, "prompt: must be text, token ids or a list of either", "prompt")
        if kinds == {int}:
            return [self.prompt]  # type: ignore[list-item]
        return self.prompt  # type: ignore[return-value]


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """A chat, to be continued or only to be tokenized."""

    messages: list[Message]
    tools: list[Any] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: PositiveInt | None = None

    @property
    def output_tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or CHAT_TOKENS


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    model: str | None = None
    add_special_tokens: bool = True


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[Annotated[int, msgspec.Meta(ge=0)]]
    model: str | None = None


def decode(raw: bytes, body_type: type[Body]) -> Body:
    """The request body.

    Raises:
        RequestError: 400, not JSON or not of this type; the text names the field.
    """
    try:
        return msgspec.json.decode(raw, type=body_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(400, f"invalid request body: {error}") from error


def plain_messages(messages: Sequence[Message]) -> list[Message]:
    """Messages with text content only: lists of text parts are joined, null becomes "".

    Raises:
        RequestError: 400 for no messages, a missing role, or content that is not text.
    """
    if not messages:
        raise RequestError(400, "messages: must not be empty", "messages")
    return [{**message, "role": _role(message), "content": _text(message)} for message in messages]


def _role(message: Message) -> str:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(400, "messages: each needs a role", "messages")
    return role


def _text(message: Message) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(400, "messages: content must be text or a list of parts", "messages")
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise RequestError(400, "messages: the mock engine takes text parts only", "messages")
    return text
