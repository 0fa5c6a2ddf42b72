"""Whose fault it is, and how it is told to the client in OpenAI's error shape."""

import msgspec


class RequestError(Exception):
    """The client's fault. Carries the HTTP status and a machine-readable code."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


class NoInstanceError(Exception):
    """No instance can take the request now: none known, none healthy, or none left to try."""


class _ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str


class _ErrorEnvelope(msgspec.Struct, frozen=True):
    error: _ErrorBody


def error_json(message: str, kind: str, code: str, param: str | None = None) -> bytes:
    """An error body as OpenAI's clients expect it."""
    return msgspec.json.encode(_ErrorEnvelope(_ErrorBody(message, kind, param, code)))
