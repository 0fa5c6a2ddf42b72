"""The relay's side of NATS: never blocks the followers, never grows without bound.

Messages go into a bounded outbox at once or are dropped and counted; receivers see dropped batches
as gaps and ask for a snapshot. While there is no connection everything is dropped, because an old
event is worth less than the snapshot that replaces it.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from indexer.relay.metrics import RelayMetrics

_log = logging.getLogger(__name__)

Responder = Callable[[bytes, Callable[[bytes], Awaitable[bool]]], Awaitable[None]]

_MAX_OUTBOX_BYTES: Final = 8 * 1024 * 1024
_MAX_PENDING_BYTES: Final = 2 * 1024 * 1024
_MAX_WAITING_REQUESTS: Final = 256
_RECONNECT_S: Final = (0.05, 0.5)
_CHECK_S: Final = 1.0
_CHECKS_UNTIL_REBUILD: Final = 30


class NatsBus:
    """One connection for all engines of the process.

    Args:
        url: of the server.
        metrics: where drops and connections are counted.
        jitter: source of the pauses between attempts to connect.
    """

    def __init__(self, url: str, metrics: RelayMetrics, jitter: random.Random) -> None:
        self._url = url
        self._metrics = metrics
        self._jitter = jitter
        self._client = Client()
        self._responders: dict[str, Responder] = {}
        self._listeners: list[Callable[[], None]] = []
        self._outbox: deque[tuple[str, bytes]] = deque()
        self._outbox_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    def on_connect(self, listener: Callable[[], None]) -> None:
        """`listener` is called after every connect and reconnect."""
        self._listeners.append(listener)

    def respond(self, subject: str, responder: Responder) -> None:
        """Requests on `subject` go to `responder`, one at a time, with a way to answer.

        To be called before `run`.
        """
        self._responders[subject] = responder

    def post(self, subject: str, data: bytes) -> bool:
        """Hands a message over for sending; False if it had to be dropped."""
        if not self.connected:
            self._metrics.dropped.labels("disconnected").inc()
            return False
        if self._outbox_bytes + len(data) > _MAX_OUTBOX_BYTES:
            self._metrics.dropped.labels("outbox_full").inc()
            return False
        self._outbox.append((subject, data))
        self._outbox_bytes += len(data)
        self._empty.clear()
        self._wake.set()
        return True

    async def send(self, subject: str, data: bytes) -> bool:
        """Like `post`, but waits while the outbox is more than half full."""
        while self._outbox_bytes > _MAX_OUTBOX_BYTES // 2:
            self._room.clear()
            await self._room.wait()
        return self.post(subject, data)

    async def run(self) -> None:
        """Stays connected until cancelled."""
        sender = asyncio.create_task(self._send_all())
        try:
            while True:
                await self._stay_connected()
                await asyncio.sleep(self._jitter.uniform(*_RECONNECT_S))
        finally:
            sender.cancel()
            with suppress(asyncio.CancelledError):
                await sender

    async def drain(self, timeout_s: float) -> None:
        """Sends what is in the outbox, for at most `timeout_s` seconds.

        To be called before `run` is cancelled, which disconnects.
        """
        if self.connected:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()
                    await self._client.flush()
            except (TimeoutError, NatsError):
                self._metrics.dropped.labels("closing").inc(len(self._outbox))

    async def _stay_connected(self) -> None:
        """One client's life; it ends only with errors that it does not retry by itself."""
        self._client = Client()
        closed = asyncio.Event()
        try:
            await self._client.connect(self._url, **self._options(closed))
            for subject, responder in self._responders.items():
                await self._subscribe(subject, responder)
            await self._note_connect()
            await self._until_lost(closed)
        except (NatsError, OSError) as error:
            await self._note_error(error)
        finally:
            with suppress(NatsError, OSError):
                await self._client.close()

    async def _until_lost(self, closed: asyncio.Event) -> None:
        """Waits until the client is beyond recovery.

        It does not report every way to end, and an unexpected error can end its attempts to
        reconnect without a word, so a long absence counts as well.
        """
        lost_checks = 0
        while not self._client.is_closed and lost_checks < _CHECKS_UNTIL_REBUILD:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await closed.wait()
            lost_checks = 0 if self.connected else lost_checks + 1

    def _options(self, closed: asyncio.Event) -> dict[str, Any]:
        async def note_closed() -> None:
            closed.set()

        return {
            "name": "warmroute-relay",
            "error_cb": self._note_error,
            "disconnected_cb": self._note_disconnect,
            "reconnected_cb": self._note_connect,
            "closed_cb": note_closed,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": self._jitter.uniform(*_RECONNECT_S),
            "reconnect_to_server_handler": self._next_server,
            "connect_timeout": 2,
            "ping_interval": 5,
            "pending_size": _MAX_PENDING_BYTES,
            "flush_timeout": 2,
        }

    async def _subscribe(self, subject: str, responder: Responder) -> None:
        async def handle(message: Any) -> None:
            if not message.reply:
                self._metrics.snapshots.labels("no_reply_subject").inc()
                return
            await responder(message.data, lambda data: self.send(message.reply, data))

        await self._client.subscribe(subject, cb=handle, pending_msgs_limit=_MAX_WAITING_REQUESTS)

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            while self._outbox:
                subject, data = self._outbox.popleft()
                self._outbox_bytes -= len(data)
                self._room.set()
                try:
                    await self._client.publish(subject, data)
                except (NatsError, OSError) as error:
                    self._metrics.dropped.labels(type(error).__name__).inc()
            self._wake.clear()
            self._empty.set()

    def _next_server(self, servers: Any, _info: Any) -> tuple[Any, float]:
        """Any server, after a pause that spreads out relays which lost it together."""
        return self._jitter.choice(servers), self._jitter.uniform(*_RECONNECT_S)

    async def _note_connect(self) -> None:
        self._metrics.nats_connects.inc()
        self._metrics.nats_up.set(1)
        _log.info("connected to NATS")
        for listener in self._listeners:
            listener()

    async def _note_disconnect(self) -> None:
        self._metrics.nats_up.set(0)
        if not self._client.is_closed:
            _log.warning("lost the connection to NATS; trying again")

    async def _note_error(self, error: Exception) -> None:
        self._metrics.nats_errors.inc()
        _log.debug("NATS: %r", error)
