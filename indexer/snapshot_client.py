"""Asks the owner of a stream for all it holds and puts the chunks together."""

import nats
from nats.aio.client import Client

from indexer.core import events
from indexer.core.events import SnapshotChunk, SnapshotRequest, WireError
from indexer.core.ingest import Snapshot


class SnapshotUnavailableError(Exception):
    """No complete snapshot came in time, or none could be asked for."""


class SnapshotAssembly:
    """Chunks of possibly several answers to one request; the first complete answer counts.

    Two relays that claim one instance both answer, so chunks are told apart by (epoch, seq).
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[int, int], dict[int, SnapshotChunk]] = {}

    def add(self, chunk: SnapshotChunk) -> Snapshot | None:
        """The whole snapshot once its last missing chunk is there."""
        answer = self._answers.setdefault((chunk.epoch, chunk.seq), {})
        answer[chunk.chunk] = chunk
        if len(answer) < chunk.chunks:
            return None
        return Snapshot(
            chunk.instance,
            chunk.rank,
            chunk.epoch,
            chunk.seq,
            chunk.count,
            chunk.digest,
            [op for number in sorted(answer) for op in answer[number].ops],
        )


async def fetch_snapshot(
    client: Client, subject: str, request: SnapshotRequest, timeout_s: float
) -> Snapshot:
    """One complete snapshot.

    Args:
        client: connected NATS client.
        subject: where the owner listens.
        request: which rank.
        timeout_s: longest wait for the next chunk.

    Raises:
        SnapshotUnavailableError: nobody answered, or the answer stopped half-way.
    """
    if not client.is_connected:
        raise SnapshotUnavailableError("not connected to NATS")
    try:
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        try:
            await client.publish(subject, events.encode(request), reply=inbox)
            assembly = SnapshotAssembly()
            while True:
                message = await subscription.next_msg(timeout_s)
                if not message.data:
                    raise SnapshotUnavailableError("nobody serves it")
                snapshot = assembly.add(events.decode_snapshot_chunk(message.data))
                if snapshot is not None:
                    return snapshot
        finally:
            if client.is_connected:
                await subscription.unsubscribe()
    except (TimeoutError, nats.errors.Error, WireError, OSError) as error:
        raise SnapshotUnavailableError(str(error) or type(error).__name__) from error
