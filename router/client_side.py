"""The server side of the proxy: one client's request, and the answer that it gets."""

import socket
import struct
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from router.core.errors import RequestError
from router.headers import Headers, value_of

_BUFFERED_BYTES: Final = 1024 * 1024


class RelayedResponse(web.StreamResponse):
    """An answer that keeps the engine's headers and gets no others but those of framing."""

    def __init__(self, status: int, reason: str, headers: Headers) -> None:
        super().__init__(status=status, reason=reason, headers=CIMultiDict(headers))
        self._names = {name.lower() for name, _ in headers}

    def drop_additions(self) -> None:
        """Takes out what the server library adds by default."""
        for name in ("Server", "Content-Type"):
            if name.lower() not in self._names:
                self.headers.pop(name, None)


async def drop_additions(_request: web.Request, response: web.StreamResponse) -> None:
    """To be run by the server library before it sends an answer's head."""
    if isinstance(response, RelayedResponse):
        response.drop_additions()


class ClientSide:
    """What the proxy reads from and writes to a client."""

    def __init__(self, request: web.Request, closing: bool) -> None:
        """`closing`: this is the last request on its connection."""
        self._request = request
        self._closing = closing
        self._response: web.StreamResponse | None = None
        self.method = request.method
        self.path = request.path
        self.target = request.raw_path if request.raw_path.startswith("/") else request.path_qs
        self.headers: Headers = list(request.headers.items())

    @property
    def length_bytes(self) -> int | None:
        """The body's announced size; None where it is not announced."""
        return self._request.content_length

    @property
    def has_body(self) -> bool:
        return self._request.body_exists

    def is_small(self) -> bool:
        """Whether the body is worth being kept for a second try."""
        return self.length_bytes is not None and self.length_bytes <= _BUFFERED_BYTES

    async def read_body(self, limit_bytes: int) -> bytes:
        """The whole body.

        Raises:
            RequestError: it is larger than `limit_bytes`.
        """
        self.check_length(limit_bytes)
        body = bytearray()
        try:
            async for chunk in self._request.content.iter_any():
                body += chunk
                if len(body) > limit_bytes:
                    raise _too_large(limit_bytes)
        except web.RequestPayloadError as error:
            raise bad_upload() from error
        return bytes(body)

    def check_length(self, limit_bytes: int) -> None:
        if (self.length_bytes or 0) > limit_bytes:
            raise _too_large(limit_bytes)

    async def stream_body(self) -> AsyncIterator[bytes]:
        async for chunk in self._request.content.iter_any():
            yield chunk

    @property
    def started(self) -> bool:
        """Whether the client has got the head of an answer: from then on nothing can be undone."""
        return self._response is not None

    async def start(self, status: int, reason: str, headers: Headers) -> None:
        """Sends the head of the answer."""
        self._response = RelayedResponse(status, reason, headers)
        if self._closing:
            self._response.force_close()
        await self._response.prepare(self._request)

    async def write(self, chunk: bytes) -> None:
        """Sends a piece of the body; waits while the client is slow."""
        if self._response is None:
            raise RuntimeError("write before start")
        await self._response.write(chunk)

    async def send(self, status: int, body: bytes, headers: Headers) -> None:
        """Sends a whole answer."""
        self._response = web.Response(status=status, body=body, headers=CIMultiDict(headers))
        if self._closing or (self.has_body and not self._request.content.at_eof()):
            self._response.force_close()
        await self._response.prepare(self._request)

    def response(self) -> web.StreamResponse:
        """What was sent, for the server library to end."""
        if self._response is None:
            raise RuntimeError("nothing was sent")
        return self._response

    def break_off(self) -> None:
        """Ends the connection so that the client sees that the answer is not complete."""
        transport = self._request.transport
        if transport is None:
            return
        if self._request.version < (1, 1):
            # There the connection's orderly end is the end of the answer, so it must be a reset.
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()  # without the last chunk, or short of the length

    def header(self, name: str) -> str | None:
        return value_of(self.headers, name)


def bad_upload() -> RequestError:
    return RequestError("the request body is not what its headers announce", code="bad_body")


def _too_large(limit_bytes: int) -> RequestError:
    return RequestError(
        f"request body is larger than {limit_bytes} bytes", status=413, code="body_too_large"
    )
