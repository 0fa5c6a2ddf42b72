"""Engines that come and go: by the API, by heartbeats, by both."""

import asyncio
import json
import time

from router_harness import (
    STREAM_HEAD,
    Engine,
    ask,
    chunk,
    complete,
    connected,
    eventually,
    metric,
    request_bytes,
    routed,
)

from indexer.core.blocks import block_hashes, namespace_hash, pack_hashes
from indexer.core.events import Batch, Heartbeat, Register, StreamState
from indexer.core.ingest import Ingest
from indexer.core.streams import IngestConfig
from indexer.feed import FeedCounters


class StubFeed:
    """A bus that the test speaks for."""

    def __init__(self):
        self.ingest = Ingest(IngestConfig())
        self.counters = FeedCounters()
        self.connected = True

    async def start(self):
        pass

    async def stop(self):
        pass

    def announce(self, engine, name, ranks=(0,), **load):
        states = [StreamState(rank, 1, -1, 0, 0, **load) for rank in ranks]
        heartbeat = Heartbeat(name, "default", 0.0, states, engine.url, "m", 16)
        self.ingest.on_heartbeat(heartbeat, time.monotonic())

    def holds(self, name, rank, ids):
        hashes = block_hashes(ids, 16, namespace_hash("m"))
        op = Register("gpu", pack_hashes(hashes))
        self.ingest.on_batch(Batch(name, rank, 1, 0, 0.0, [op]), time.monotonic())


def prompt(ids):
    return json.dumps({"model": "m", "prompt": ids}).encode()


async def test_a_worker_added_by_the_api_gets_traffic():
    engine = Engine()
    await engine.start()
    async with routed() as router:
        body = json.dumps({"url": engine.url + "/"}).encode()
        added = json.loads((await ask(router, "POST", "/workers", body)).body)
        assert (added["url"], added["instance"]) == (engine.url, engine.name)
        assert (await complete(router)).status == 200
    await engine.stop()


async def test_a_bad_worker_is_refused():
    async with routed() as router:
        for body in (b"", b"{}", b'{"url":"nonsense"}', b'{"url":"ftp://x"}', b'{"url":1}'):
            assert (await ask(router, "POST", "/workers", body)).status == 400
        assert (await ask(router, "DELETE", "/workers/nobody")).status == 404
        assert (await ask(router, "DELETE", "/workers")).status == 404


async def test_workers_are_listed_with_their_load():
    async def script(_seen, writer):
        writer.write(STREAM_HEAD)
        await asyncio.Event().wait()

    engine = Engine(script)
    async with routed(engine) as router, connected(router.url) as connection:
        connection.writer.write(request_bytes("POST", "/v1/completions", prompt(list(range(100)))))
        await eventually(lambda: router.dispatcher.leases.open_leases() == 1)
        (row,) = json.loads((await ask(router, "GET", "/workers")).body)
        connection.leave()
    assert {**row, "pending_prefill_tokens": 0} == {
        "url": engine.url,
        "instance": engine.name,
        "rank": 0,
        "model": "m",
        "models": ["m"],
        "state": "up",
        "in_flight": 1,
        "pending_prefill_tokens": 0,
    }


async def test_a_removed_workers_stream_ends_well_and_it_gets_no_new_work():
    go = asyncio.Event()

    async def script(_seen, writer):
        writer.write(STREAM_HEAD + chunk(b"one"))
        await go.wait()
        writer.write(chunk(b"two") + b"0\r\n\r\n")

    old, new = Engine(script), Engine()
    async with routed(old) as router, connected(router.url) as connection:
        connection.writer.write(request_bytes("POST", "/v1/completions", b'{"model":"m"}'))
        await connection.reader.readuntil(b"\r\n\r\n")
        assert await connection.read_chunk() == b"one"
        await new.start()
        router.endpoints.add(new.url)
        router.endpoints.publish(time.monotonic())
        assert (await ask(router, "DELETE", f"/workers?url={old.url}")).status == 200
        for _ in range(4):
            assert (await complete(router)).status == 200
        go.set()
        assert await connection.read_chunk() == b"two"
    assert (len(old.seen), len(new.seen)) == (1, 4)
    await new.stop()


async def test_an_announced_engine_needs_no_configuration():
    engine, feed = Engine(), StubFeed()
    await engine.start()
    feed.announce(engine, "pod-1")
    async with routed(feed=feed) as router:
        await eventually(lambda: router.endpoints.count("up") == 1)
        reply = await complete(router)
        assert reply.one("x-warmroute-instance") == "pod-1"
        assert metric(router, "nats_connected") == 1
    await engine.stop()


async def test_the_index_decides_where_a_prefix_is_held():
    engines, feed = [Engine() for _ in range(3)], StubFeed()
    ids = list(range(1600))
    for number, engine in enumerate(engines):
        await engine.start()
        feed.announce(engine, f"pod-{number}")
    feed.holds("pod-1", 0, ids)
    async with routed(feed=feed) as router:
        await eventually(lambda: router.endpoints.count("up") == 3)
        for _ in range(5):
            reply = await complete(router, prompt([*ids, 7, 8]))
            assert reply.one("x-warmroute-instance") == "pod-1"
        assert (
            metric(
                router,
                "decisions_total",
                policy="least_prefill",
                reason="prefix",
                source="index",
            )
            == 5
        )
        assert metric(router, "predicted_cached_tokens_total") > 5 * 1500
    for engine in engines:
        await engine.stop()


async def test_ranks_are_addressed_by_header():
    engine, feed = Engine(), StubFeed()
    await engine.start()
    feed.announce(engine, "pod", ranks=(0, 1))
    ids = list(range(1600))
    feed.holds("pod", 1, ids)
    async with routed(feed=feed) as router:
        await eventually(lambda: router.endpoints.count("up") == 1)
        await complete(router, prompt([*ids, 1]), ["x-data-parallel-rank: 0"])
    assert engine.seen[0].all("x-data-parallel-rank") == ["1"]
    await engine.stop()


async def test_a_configured_engine_that_is_announced_is_one_instance():
    engine, feed = Engine(), StubFeed()
    async with routed(engine, feed=feed) as router:
        feed.announce(engine, "pod")
        await eventually(lambda: [i.name for i in router.endpoints.instances()] == ["pod"])
        assert (await complete(router)).one("x-warmroute-instance") == "pod"
        assert len(router.dispatcher.endpoints()) == 1
    assert not engine.seen[0].all("x-data-parallel-rank")


async def test_engines_stay_while_the_bus_is_away():
    engine, feed = Engine(), StubFeed()
    await engine.start()
    feed.announce(engine, "pod")
    async with routed(feed=feed) as router:
        await eventually(lambda: router.endpoints.count("up") == 1)
        feed.connected = False
        feed.ingest.heartbeats.clear()
        router.refresh()
        assert (await complete(router)).status == 200
        assert metric(router, "degrade_level") >= 2
    await engine.stop()


async def test_without_a_bus_own_decisions_keep_sessions_together():
    engines = [Engine() for _ in range(4)]
    async with routed(*engines) as router:
        history = "".join(f"turn {n}. " for n in range(400))
        for turn in range(5):
            body = json.dumps({"model": "m", "prompt": history + "more " * turn}).encode()
            assert (await complete(router, body)).status == 200
    assert sorted(len(engine.seen) for engine in engines) == [0, 0, 0, 5]


async def test_load_is_read_from_engines_that_nobody_announces():
    busy = Engine(metrics=b'vllm:num_requests_running{a="b"} 7.0\nvllm:num_requests_waiting 3\n')
    idle = Engine(metrics=b"sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n")
    async with routed(busy, idle) as router:
        await eventually(lambda: router.endpoints.fresh_loads(time.monotonic()) == 2)
        router.refresh()
        for _ in range(6):
            await complete(router, b'{"model":"m","prompt":[1]}')
    assert (len(busy.seen), len(idle.seen)) == (0, 6)
