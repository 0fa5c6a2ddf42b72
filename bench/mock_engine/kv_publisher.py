"""KV event batches over ZMQ, live and for replay, framed as vLLM does."""

import asyncio
from collections import deque
from typing import Any, Final

import zmq
import zmq.asyncio

from bench.mock_engine.config import MockEngineConfig
from bench.mock_engine.faults import Faults

_REPLAY_END: Final = (-1).to_bytes(8, "big", signed=True)
_SEQ_BYTES: Final = 8

Frames = list[bytes]


class KvPublisher:
    """Numbers, sends and remembers event batches; one life starts at sequence 0.

    A PUB socket sends [topic, sequence, payload]. A ROUTER socket answers [empty, first sequence]
    with all remembered batches from there on and an end marker. Use `start` and `close` from the
    event loop.

    Args:
        config: host, ports, topic, framing and bounds.
        faults: read at every batch.
    """

    def __init__(self, config: MockEngineConfig, faults: Faults) -> None:
        self._config = config
        self._faults = faults
        self._topic = config.topic.encode()
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._delayed: deque[Frames] = deque()
        self._due_s = 0.0  # when the last of them goes out
        self._timers: set[asyncio.TimerHandle] = set()
        self.next_sequence = 0
        self.live_endpoint = ""
        self.replay_endpoint = ""

    def start(self) -> None:
        """Binds both sockets.

        Raises:
            OSError: a port is taken.
        """
        self._context = zmq.Context()
        # Sending on PUB never blocks, so only the other one needs the asyncio wrapper.
        self._live = self._context.socket(zmq.PUB)
        self._live.set_hwm(self._config.hwm)
        self._replay = zmq.asyncio.Socket.from_socket(self._context.socket(zmq.ROUTER))
        # A ROUTER drops silently at its limit: one whole replay must fit.
        self._replay.set_hwm(2 * (self._config.buffer_steps + 1))
        try:
            self.live_endpoint = self._bind(self._live, self._config.kv_events_port)
            self.replay_endpoint = self._bind(self._replay, self._config.kv_replay_port)
        except zmq.ZMQError as error:
            self._close_sockets()
            raise OSError(error.errno, f"KV event port: {error.strerror}") from error
        self._serving = asyncio.create_task(self._serve_replays())

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._close_sockets()

    def publish(self, payload: bytes) -> None:
        """Gives the batch the next sequence number and sends it, subject to the faults."""
        sequence = self.next_sequence.to_bytes(_SEQ_BYTES, "big")
        self.next_sequence += 1
        self._buffer.append((sequence, payload))
        if self._faults.take_drop():
            return
        copies = 2 if self._faults.take_duplicate() else 1
        for _ in range(copies):
            self._send([self._topic, sequence, payload])

    def _close_sockets(self) -> None:
        self._replay.close(linger=0)
        self._live.close(linger=0)
        self._context.term()

    def _bind(self, socket: Any, port: int) -> str:
        socket.bind(f"tcp://{self._config.host}:{port or '*'}")
        endpoint: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)
        return endpoint.rstrip(b"\0").decode()

    def _send(self, frames: Frames) -> None:
        delay_s = self._faults.event_delay_s
        if delay_s <= 0 and not self._delayed:
            self._live.send_multipart(frames)
            return
        # Each timer sends the oldest batch, whichever timer it is: order is kept.
        loop = asyncio.get_running_loop()
        self._due_s = max(self._due_s, loop.time() + delay_s)
        self._delayed.append(frames)
        timer: asyncio.TimerHandle = loop.call_at(self._due_s, lambda: self._send_oldest(timer))
        self._timers.add(timer)

    def _send_oldest(self, timer: asyncio.TimerHandle) -> None:
        self._timers.discard(timer)
        self._live.send_multipart(self._delayed.popleft())

    async def _serve_replays(self) -> None:
        while True:
            request = await self._replay.recv_multipart()
            if len(request) == 3 and len(request[2]) == _SEQ_BYTES:
                await self._replay_from(request[0], int.from_bytes(request[2], "big"))

    async def _replay_from(self, identity: bytes, first: int) -> None:
        for sequence, payload in list(self._buffer):
            if int.from_bytes(sequence, "big") >= first:
                await self._reply(identity, self._topic, sequence, payload)
        await self._reply(identity, b"", _REPLAY_END, b"")

    async def _reply(self, identity: bytes, topic: bytes, sequence: bytes, payload: bytes) -> None:
        head = [identity, b""] if self._config.replay_framing == "old" else [identity, b"", topic]
        await self._replay.send_multipart([*head, sequence, payload])
