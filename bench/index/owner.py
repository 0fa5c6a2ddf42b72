"""Plays the relays of a whole fleet: announces instances and serves their snapshots."""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence

import nats
import numpy as np
from nats.aio.client import Client
from nats.aio.msg import Msg

from indexer.core import subjects
from indexer.core.events import (
    Heartbeat,
    Register,
    SnapshotChunk,
    StreamState,
    decode_snapshot_request,
    encode,
)

_CHUNK_BLOCKS = 30_000  # 240 KB, below NATS's default limit of 1 MiB a message
_EPOCH = 1


class ScriptedOwner:
    """One instance with random content that never changes."""

    def __init__(self, name: str, blocks: int, seed: int, block_tokens: int) -> None:
        rng = np.random.default_rng(seed)
        self.name = name
        self._block_tokens = block_tokens
        self._hashes = np.unique(rng.integers(1, 2**64, blocks, dtype=np.uint64))
        self._digest = int(np.bitwise_xor.reduce(self._hashes))

    def heartbeat(self, pool: str) -> bytes:
        state = StreamState(0, _EPOCH, 0, len(self._hashes), self._digest)
        url = f"http://{self.name}"
        return encode(Heartbeat(self.name, pool, 0.0, [state], url, "model", self._block_tokens))

    def chunks(self) -> list[bytes]:
        parts = [
            self._hashes[start : start + _CHUNK_BLOCKS].tobytes()
            for start in range(0, len(self._hashes), _CHUNK_BLOCKS)
        ]
        count, digest = len(self._hashes), self._digest
        return [
            encode(
                SnapshotChunk(
                    self.name,
                    0,
                    _EPOCH,
                    0,
                    number,
                    len(parts),
                    count,
                    digest,
                    [Register("gpu", part)],
                )
            )
            for number, part in enumerate(parts)
        ]


async def serve(nats_url: str, pool: str, owners: Sequence[ScriptedOwner]) -> None:
    """Answers until cancelled; heartbeats every half second."""
    client = await nats.connect(nats_url)
    for owner in owners:
        await _answer_snapshots(client, pool, owner)
    print("ready", flush=True)
    while True:
        for owner in owners:
            await client.publish(subjects.heartbeat(pool, owner.name), owner.heartbeat(pool))
        await asyncio.sleep(0.5)


async def _answer_snapshots(client: Client, pool: str, owner: ScriptedOwner) -> None:
    chunks = owner.chunks()

    async def answer(message: Msg) -> None:
        decode_snapshot_request(message.data)
        for chunk in chunks:
            await client.publish(message.reply, chunk)

    await client.subscribe(subjects.snapshot(pool, owner.name), cb=answer)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.index.owner", description=__doc__)
    parser.add_argument("--nats-url", required=True)
    parser.add_argument("--pool", default="default")
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=187_500, help="of each instance")
    parser.add_argument("--block-tokens", type=int, default=16)
    args = parser.parse_args(argv)
    owners = [
        ScriptedOwner(f"engine-{n}", args.blocks, n, args.block_tokens)
        for n in range(args.instances)
    ]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(args.nats_url, args.pool, owners))
    return 0


if __name__ == "__main__":
    sys.exit(main())
