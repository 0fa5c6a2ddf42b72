"""The client side of the proxy: one request to one engine, and its answer as it comes."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, Literal

import aiohttp
import yarl

from router.headers import Headers, end_to_end

Failure = Literal["connect", "reset"]

_MAX_LINE_BYTES: Final = 65_536
_CHUNK_BYTES: Final = 65_536
# Added by the client library on its own; here only what the client of the router sent may travel.
_NEVER_ADDED: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class UpstreamError(Exception):
    """The engine gave no (complete) answer: it could not be reached, or broke off."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure: Failure = failure


class RequestBody:
    """A body to be sent, once or again.

    A streamed body can be sent to another engine only as long as nothing of it was read.
    """

    def __init__(
        self, data: bytes = b"", stream: Callable[[], AsyncIterator[bytes]] | None = None
    ) -> None:
        self._data = data
        self._stream = stream
        self.length_bytes: int | None = len(data)
        self.replayable = True
        self.client_failed = False  # the client did not send what it announced

    @classmethod
    def streamed(
        cls, stream: Callable[[], AsyncIterator[bytes]], length_bytes: int | None
    ) -> "RequestBody":
        """A body that is read from the client while it is sent on; None: length not known."""
        body = cls(stream=stream)
        body.length_bytes = length_bytes
        return body

    def payload(self) -> bytes | AsyncIterator[bytes] | None:
        """What the HTTP client is to send."""
        if self._stream is None and len(self._data) <= _CHUNK_BYTES:
            return self._data or None
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._stream is None:
            view = memoryview(self._data)
            for start in range(0, len(view), _CHUNK_BYTES):
                yield bytes(view[start : start + _CHUNK_BYTES])
            return
        self.replayable = False
        try:
            async for piece in self._stream():
                yield piece
        except Exception:
            self.client_failed = True
            raise


class Answer:
    """An engine's answer whose head and first body bytes have arrived."""

    def __init__(self, response: aiohttp.ClientResponse, first: bytes) -> None:
        self._response = response
        self._first = first
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Headers = end_to_end(
            (name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"))
            for name, value in response.raw_headers
        )

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            UpstreamError: the engine broke off.
        """
        chunk = self._first
        while chunk:
            yield chunk
            with _translated():
                chunk = await self._response.content.readany()

    def close(self) -> None:
        """Frees the connection, or cuts it when the answer is not complete. Idempotent."""
        self._response.close()


class Upstream:
    """Keeps connections to engines."""

    def __init__(self, connect_timeout_s: float, keepalive_s: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=keepalive_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            skip_auto_headers=_NEVER_ADDED,
            auto_decompress=False,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_LINE_BYTES,
            read_bufsize=_CHUNK_BYTES,
        )

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, method: str, url: str, headers: Headers, body: RequestBody) -> Answer:
        """Sends a request and waits for the first bytes of the answer's body.

        An engine's head alone promises nothing (vLLM sends it before it has computed a token), so
        until a body byte is there the request can still go elsewhere.

        Raises:
            UpstreamError: no answer.
        """
        sent = list(headers)
        if body.length_bytes:
            sent.append(("Content-Length", str(body.length_bytes)))
        with _translated():
            response = await self._session.request(
                method,
                yarl.URL(url, encoded=True),
                headers=sent,
                data=body.payload(),
                allow_redirects=False,
            )
            try:
                return Answer(response, await response.content.readany())
            except BaseException:
                response.close()
                raise

    async def fetch(self, url: str, timeout_s: float, limit_bytes: int) -> tuple[int, bytes]:
        """A short GET for the router's own use: (status, body).

        Raises:
            UpstreamError: no answer in time, or more than `limit_bytes`.
        """
        with _translated():
            async with self._session.get(
                url, timeout=aiohttp.ClientTimeout(total=timeout_s), allow_redirects=False
            ) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > limit_bytes:
                        raise UpstreamError("reset", f"more than {limit_bytes} bytes")
                return response.status, bytes(body)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """The client library's errors as ours."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise UpstreamError("connect", str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        # TimeoutError is an OSError, but a deadline around the call cancels and does not come here.
        raise UpstreamError("reset", str(error) or type(error).__name__) from error
