"""The two sockets of an engine's KV event publisher."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Final

import zmq
import zmq.asyncio

from indexer.core.engine_events import END_OF_REPLAY, split_frames

# More than an engine publishes while this process is busy; beyond it a gap shows and is replayed.
_LIVE_MESSAGES: Final = 20_000
# Engines before vLLM 0.33 drop replay frames when the reader's queue is full.
_REPLAY_MESSAGES: Final = 100_000
_RECONNECT_MS: Final = (100, 2000)


class ReplayBrokenError(Exception):
    """The engine went silent before the end of a replay."""


@contextmanager
def subscription(context: zmq.asyncio.Context, endpoint: str) -> Iterator[zmq.asyncio.Socket]:
    """A connected live socket; it reconnects by itself, and a gap in numbers tells what was missed.

    Raises:
        zmq.ZMQError: the endpoint is not an address.
    """
    with _socket(context, zmq.SUB, _LIVE_MESSAGES, endpoint) as socket:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        yield socket


async def replayed_messages(
    context: zmq.asyncio.Context, endpoint: str, start: int, idle_timeout_s: float
) -> AsyncGenerator[list[bytes], None]:
    """Frames of every message that the engine still has from `start` on, in order.

    Each replay has a socket of its own, so answers to an abandoned one never mix with it.

    Raises:
        ReplayBrokenError: nothing came for `idle_timeout_s` seconds before the end.
        EngineEventError: a message without a sequence number.
    """
    with _socket(context, zmq.DEALER, _REPLAY_MESSAGES, endpoint) as socket:
        # The engine's ROUTER expects the empty delimiter that a REQ socket would send. REQ itself
        # takes only one reply.
        await socket.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            try:
                async with asyncio.timeout(idle_timeout_s):
                    frames = await socket.recv_multipart()
            except TimeoutError:
                raise ReplayBrokenError(f"no message for {idle_timeout_s} s") from None
            if split_frames(frames)[0] == END_OF_REPLAY:
                return
            yield frames


@contextmanager
def _socket(
    context: zmq.asyncio.Context, kind: int, max_messages: int, endpoint: str
) -> Iterator[zmq.asyncio.Socket]:
    socket = context.socket(kind)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, max_messages)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS[0])
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS[1])
        socket.connect(endpoint)
        yield socket
    finally:
        socket.close()
