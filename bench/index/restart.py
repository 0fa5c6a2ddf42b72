"""How long a replica that starts with nothing needs until it knows all there is."""

import asyncio
from pathlib import Path
from time import monotonic

from bench.index.in_process import INSTANCES, RESIDENT_BLOCKS
from bench.stack.nats_server import NatsServer
from bench.stack.process import Process
from indexer.core.ingest import Ingest
from indexer.core.streams import IngestConfig
from indexer.feed import FeedConfig, IndexFeed

_TIMEOUT_S = 60.0
_POLL_S = 0.01


async def restart_s(run_dir: Path) -> float:
    """Seconds from starting a feed until every stream of 1.5 M blocks is complete.

    Args:
        run_dir: existing folder for logs.
    """
    nats = NatsServer(run_dir)
    await nats.start()
    blocks = ("--instances", str(INSTANCES), "--blocks", str(RESIDENT_BLOCKS // INSTANCES))
    arguments = ["--nats-url", nats.url, *blocks]
    owner = Process.python("owner", "bench.index.owner", arguments, run_dir)
    try:
        await owner.wait_until(lambda: _says_ready(owner), "content")
        return await _time_to_complete(nats.url)
    finally:
        await owner.stop()
        await nats.stop()


async def _says_ready(owner: Process) -> bool:
    return "ready" in owner.log_path.read_text()


async def _time_to_complete(nats_url: str) -> float:
    ingest = Ingest(IngestConfig())
    feed = IndexFeed(FeedConfig(nats_url=nats_url), ingest, monotonic)
    start_s = monotonic()
    await feed.start()
    try:
        while not _is_complete(ingest):
            if monotonic() - start_s > _TIMEOUT_S:
                raise TimeoutError(f"the index was not complete after {_TIMEOUT_S:g} s")
            await asyncio.sleep(_POLL_S)
        return monotonic() - start_s
    finally:
        await feed.stop()


def _is_complete(ingest: Ingest) -> bool:
    streams = ingest.streams.values()
    return len(streams) == INSTANCES and all(
        stream.synced and stream.cursor.seq >= 0 for stream in streams
    )
