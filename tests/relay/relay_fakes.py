"""A NATS server, a scripted engine and a listener on the bus, for the relay's tests."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import nats
import zmq
import zmq.asyncio
from aiohttp import web
from nats.errors import NoRespondersError

from indexer.core import events, subjects
from indexer.core.blocks import unpack_hashes
from indexer.core.events import Batch, Clear, Heartbeat, Register, SnapshotChunk, tier_of
from indexer.core.tiers import digest_term

END = b"\xff" * 8


async def eventually(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("did not happen in time")
        await asyncio.sleep(0.01)


def stored(hashes, parent, tokens, block_size=16, *, as_map=True, **more):
    """One BlockStored event in the newer or the older encoding."""
    if as_map:
        return {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": tokens,
            "block_size": block_size,
            **more,
        }
    return ["BlockStored", hashes, parent, tokens, block_size, None, *more.values()]


def removed(hashes, *, as_map=True, **more):
    if as_map:
        return {"type": "BlockRemoved", "block_hashes": hashes, **more}
    return ["BlockRemoved", hashes, *more.values()]


def cleared(*, as_map=True):
    return {"type": "AllBlocksCleared"} if as_map else ["AllBlocksCleared"]


def payload(*engine_events, ts=1.0, rank=0):
    return msgspec.msgpack.encode([ts, list(engine_events), rank])


class NatsServer:
    """The real server as a child process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = -1
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        binary = shutil.which("nats-server", path=str(Path(sys.executable).parent))
        assert binary, "nats-server is not installed beside this Python"
        for old in self._folder.glob("*.ports"):
            old.unlink()
        self._process = subprocess.Popen(
            [binary, "-a", "127.0.0.1", "-p", str(self._port), "--ports_file_dir", self._folder],
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while self._read_port() is None:
            assert time.monotonic() < deadline, "nats-server did not start"
            time.sleep(0.01)
        self._port = self._read_port()

    def _read_port(self) -> int | None:
        for path in self._folder.glob("*.ports"):
            with contextlib.suppress(ValueError, KeyError, IndexError):
                return int(json.loads(path.read_text())["nats"][0].rsplit(":", 1)[1])
        return None

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class FakeEngine:
    """vLLM's HTTP pages and ZMQ publisher, driven by the test."""

    def __init__(self, *, old_framing: bool = False, buffer: int = 1000) -> None:
        self.old_framing = old_framing
        self.buffer_size = buffer
        self.models = ["m"]
        self.is_ready = True
        self.tells_sources = True
        self.has_replay = True
        self.running = 3
        self.started = 100.0
        self.replay_requests: list[int] = []
        self.context = zmq.asyncio.Context()
        self.seq = 0
        self.buffer: list[tuple[int, bytes]] = []
        self.http_port = 0

    async def start(self) -> None:
        self.pub = self.context.socket(zmq.PUB)
        self.pub.setsockopt(zmq.LINGER, 0)
        self.pub_port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router_port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self._serving = asyncio.create_task(self._serve_replays())
        await self.start_http()

    async def start_http(self) -> None:
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.get("/kv_event_sources", self._sources),
                web.get("/metrics", self._metrics),
            ]
        )
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.http_port, reuse_address=True)
        await site.start()
        self.http_port = self._runner.addresses[0][1]

    async def stop_http(self) -> None:
        await self._runner.cleanup()

    async def stop(self) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        await self.stop_http()
        self.pub.close()
        self.router.close()
        self.context.term()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    async def publish(self, *engine_events, ts=None, send=True, raw=None) -> None:
        """One batch; `send=False` keeps it off the live socket as if it had been dropped there."""
        data = raw or payload(*engine_events, ts=time.time() if ts is None else ts)  # noqa: TID251
        seq, self.seq = self.seq, self.seq + 1
        self.buffer = [*self.buffer, (seq, data)][-self.buffer_size :]
        if send:
            await self.pub.send_multipart([b"", seq.to_bytes(8, "big"), data])

    def restart(self) -> None:
        """A new process at the same address: nothing cached, numbers from 0."""
        self.seq = 0
        self.buffer = []

    async def _serve_replays(self) -> None:
        while True:
            identity, _, start = await self.router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.replay_requests.append(first)
            topic = [] if self.old_framing else [b""]
            for seq, data in self.buffer:
                if seq >= first:
                    await self.router.send_multipart(
                        [identity, b"", *topic, seq.to_bytes(8, "big"), data]
                    )
            await self.router.send_multipart([identity, b"", *topic, END, b""])

    async def _models(self, _request):
        if not self.is_ready:
            raise web.HTTPServiceUnavailable
        return web.json_response({"data": [{"id": name, "parent": None} for name in self.models]})

    async def _version(self, _request):
        return web.json_response({"version": "0.33.0"})

    async def _sources(self, _request):
        if not self.tells_sources:
            raise web.HTTPNotFound
        replay = f"tcp://*:{self.router_port}" if self.has_replay else None
        source = {"endpoint": f"tcp://*:{self.pub_port}", "replay_endpoint": replay}
        return web.json_response({"0": source})

    async def _metrics(self, _request):
        labels = '{model_name="m",engine="0"}'
        return web.Response(
            text=f"vllm:num_requests_running{labels} {self.running}.0\n"
            f"vllm:num_requests_waiting{labels} 1.0\n"
            f"vllm:kv_cache_usage_perc{labels} 0.5\n"
            f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="100"}} 1.0\n'
            f"process_start_time_seconds {self.started}\n"
        )


class Listener:
    """Everything on the bus of one pool; keeps the content that follows from the batches."""

    def __init__(self, pool: str = "default") -> None:
        self._pool = pool
        self.batches: list[Batch] = []
        self.heartbeats: list[Heartbeat] = []
        self.held: set[tuple[str, int]] = set()

    async def start(self, url: str) -> None:
        async def ignore(_error):
            pass

        self.client = await nats.connect(
            url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=ignore
        )
        await self.client.subscribe(subjects.all_events(self._pool), cb=self._take_batch)
        await self.client.subscribe(subjects.all_heartbeats(self._pool), cb=self._take_heartbeat)
        await self.client.flush()

    async def stop(self) -> None:
        await self.client.close()

    async def _take_batch(self, message) -> None:
        batch, skipped = events.decode_batch(message.data)
        assert skipped == 0
        if self.batches and batch.epoch != self.batches[-1].epoch:
            assert batch.epoch > self.batches[-1].epoch
            self.held.clear()
        self.batches.append(batch)
        for op in batch.ops:
            self._apply(op)

    def _apply(self, op) -> None:
        if isinstance(op, Clear):
            self.held.clear()
            return
        pairs = {(op.tier, h) for h in unpack_hashes(op.hashes)}
        if isinstance(op, Register):
            assert not pairs & self.held, "registered twice"
            self.held |= pairs
        else:
            assert pairs <= self.held, "evicted what was not held"
            self.held -= pairs

    async def _take_heartbeat(self, message) -> None:
        self.heartbeats.append(events.decode_heartbeat(message.data))

    @property
    def sequence(self) -> list[int]:
        return [batch.seq for batch in self.batches]

    @property
    def stream(self):
        return self.heartbeats[-1].streams[0]

    @property
    def digest(self) -> int:
        digest = 0
        for tier, block in self.held:
            digest ^= digest_term(tier_of(tier), block)
        return digest

    async def until_answered(self, instance: str) -> None:
        """Waits for somebody to listen to snapshot requests for `instance`."""
        subject = subjects.snapshot(self._pool, instance)
        request = events.encode(events.SnapshotRequest(99))
        while True:
            try:
                await self.client.request(subject, request, timeout=0.05)
            except NoRespondersError:
                await asyncio.sleep(0.01)
            except TimeoutError:
                return

    async def snapshot(self, instance: str, rank: int = 0) -> list[SnapshotChunk]:
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        request = events.encode(events.SnapshotRequest(rank))
        await self.client.publish(subjects.snapshot(self._pool, instance), request, reply=inbox)
        chunks = [events.decode_snapshot_chunk((await subscription.next_msg(5)).data)]
        while len(chunks) < chunks[0].chunks:
            chunks.append(events.decode_snapshot_chunk((await subscription.next_msg(5)).data))
        await subscription.unsubscribe()
        return chunks


def content(chunks: list[SnapshotChunk]) -> set[tuple[str, int]]:
    return {(op.tier, h) for chunk in chunks for op in chunk.ops for h in unpack_hashes(op.hashes)}
