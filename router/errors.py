"""What the router itself answers when it cannot pass on an engine's answer."""

from typing import Final

from router.core.errors import error_json

# HTTP status -> "type" of OpenAI's error object.
_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class GatewayError(Exception):
    """The engines' or the control plane's fault, told to the client as a 5xx."""

    def __init__(
        self, message: str, *, status: int, code: str, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


def no_instance(message: str) -> GatewayError:
    return GatewayError(message, status=503, code="no_instance", retry_after_s=1)


def timed_out(seconds: float) -> GatewayError:
    return GatewayError(
        f"no complete answer within {seconds:g} s", status=504, code="request_timeout"
    )


def error_body(message: str, status: int, code: str) -> bytes:
    """A JSON error body in OpenAI's shape."""
    return error_json(message, _TYPES.get(status, "internal_error"), code)
