"""Scripted engines on raw sockets, a router in this process, and a client that counts bytes."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from router.config import ProbeConfig, RouterConfig
from router.service import Router, running

MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


@dataclass
class Seen:
    """A request as an engine saw it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def all(self, name):
        return [value for key, value in self.headers if key.lower() == name.lower()]


Script = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


def answer(body=b"{}", status="200 OK", headers=()):
    lines = [f"HTTP/1.1 {status}", *headers]
    if not any(line.lower().startswith("content-type") for line in headers):
        lines.append("Content-Type: application/json")
    lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"

    async def script(_seen, writer):
        writer.write(head + body)

    return script


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@dataclass
class Engine:
    """Answers /health and /v1/models by itself, everything else by `script`."""

    script: Script = field(default_factory=answer)
    health: int = 200
    models: bytes = MODELS
    metrics: bytes = b""
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    hung_up: int = 0  # connections that the router closed while a script ran
    url: str = ""
    _server: asyncio.Server | None = None
    _open: set[asyncio.Task] = field(default_factory=set)

    async def start(self, port=0):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    @property
    def name(self):
        return self.url.removeprefix("http://")

    async def stop(self):
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._open.add(asyncio.current_task())
        self.connections += 1
        try:
            while (seen := await read_request(reader)) is not None:
                if not await self._own(seen, writer):
                    self.seen.append(seen)
                    await self._run(seen, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up += 1
        except asyncio.CancelledError:
            writer.transport.abort()  # the stream server reports cancelled handlers as errors
        finally:
            self._open.discard(asyncio.current_task())
            writer.close()

    async def _run(self, seen, reader, writer):
        """Runs the script and watches whether the router hangs up meanwhile."""
        script = asyncio.ensure_future(self.script(seen, writer))
        watch = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({script, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not script.done():
                raise ConnectionResetError
            await script
            if watch.done():
                raise ConnectionResetError
        finally:
            for task in (script, watch):
                task.cancel()
            await asyncio.gather(script, watch, return_exceptions=True)

    async def _own(self, seen, writer):
        if seen.target == "/health":
            await answer(b"{}", f"{self.health} X")(seen, writer)
        elif seen.target == "/v1/models":
            await answer(self.models)(seen, writer)
        elif seen.target == "/metrics":
            await answer(self.metrics, headers=["Content-Type: text/plain"])(seen, writer)
        else:
            return False
        return True


async def read_request(reader):
    head = await read_head(reader)
    if head is None:
        return None
    first, headers = head
    method, target, _ = first.split(" ", 2)
    seen = Seen(method, target, headers)
    if "chunked" in "".join(seen.all("transfer-encoding")):
        seen.body = await read_chunks(reader)
    elif lengths := seen.all("content-length"):
        seen.body = await reader.readexactly(int(lengths[0]))
    return seen


async def read_head(reader):
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    return first, [tuple(line.split(": ", 1)) for line in lines]


async def read_chunks(reader):
    body = b""
    while size := int((await reader.readline()).strip() or b"-1", 16):
        if size < 0:
            raise asyncio.IncompleteReadError(body, None)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readline()
    return body


@dataclass
class Reply:
    """An answer as a client saw it."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes
    complete: bool = True

    def all(self, name):
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def one(self, name):
        (value,) = self.all(name)
        return value


def request_bytes(method, target, body=b"", headers=()):
    lines = [f"{method} {target} HTTP/1.1", "Host: router", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Connection:
    """One client connection."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    async def reply(self, method="GET"):
        first, headers = await read_head(self.reader)
        _, status, reason = first.split(" ", 2)
        reply = Reply(int(status), reason, headers, b"")
        try:
            if method == "HEAD" or reply.status in (204, 304):
                pass
            elif reply.all("transfer-encoding"):
                reply.body = await read_chunks(self.reader)
            elif lengths := reply.all("content-length"):
                reply.body = await self.reader.readexactly(int(lengths[0]))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            reply.body = getattr(error, "partial", b"")
            reply.complete = False
        return reply

    async def read_chunk(self):
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    def leave(self):
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def connected(router_url):
    host, port = router_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 26)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def ask(router, method, target, body=b"", headers=()):
    async with connected(router.url) as connection:
        connection.writer.write(request_bytes(method, target, body, headers))
        return await connection.reply(method)


async def complete(router, body=b'{"model":"m","prompt":"hello"}', headers=()):
    return await ask(router, "POST", "/v1/completions", body, headers)


async def eventually(condition, within_s=2.0):
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not come true in time"
        await asyncio.sleep(0.005)


QUICK = ProbeConfig(interval_s=0.05, timeout_s=0.5)


@contextlib.asynccontextmanager
async def routed(
    *engines, settle=True, feed=None, dead_urls=(), **settings
) -> AsyncIterator[Router]:
    """A router before these engines, started when they have been probed."""
    for engine in engines:
        if not engine.url:
            await engine.start()
    numbers = itertools.count()
    config = RouterConfig(
        host="127.0.0.1",
        port=0,
        prometheus_port=0,
        worker_urls=(*dead_urls, *(engine.url for engine in engines)),
        **{"probes": QUICK, **settings},
    )
    router = Router(config, time.monotonic, lambda: f"id-{next(numbers)}", feed)
    try:
        async with running(router):
            if settle:
                await eventually(
                    lambda: all(
                        i.answers_probes is not None
                        and (i.cards is not None or not i.answers_probes)
                        for i in router.endpoints.instances()
                    ),
                    5.0,
                )
            yield router
            await eventually(lambda: router.dispatcher.leases.open_leases() == 0)
    finally:
        for engine in engines:
            await engine.stop()


def metric(router, name, **labels):
    return router.registry.get_sample_value("warmroute_router_" + name, labels) or 0.0


def dead_url():
    """A URL on which nobody listens."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
