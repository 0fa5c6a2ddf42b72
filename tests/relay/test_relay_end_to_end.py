"""The relay between a scripted engine and a real NATS server."""

import asyncio

import aiohttp
import pytest
from relay_fakes import FakeEngine, cleared, content, eventually, removed, stored

from indexer.core import events, subjects
from indexer.core.blocks import block_hashes, namespace_hash

MODEL_SEED = namespace_hash("m")
TOKENS = list(range(1000, 1000 + 64 * 16))
CHAIN = block_hashes(TOKENS, 16, MODEL_SEED)


def block(index, **more):
    """Engine block `index` of one long prompt; the engine's hash of it is 500 + index."""
    parent = 499 + index if index else None
    tokens = TOKENS[16 * index : 16 * index + 16]
    return stored([500 + index], parent, tokens, **more)


def gpu(*indices):
    return {("gpu", CHAIN[index]) for index in indices}


async def test_replay_then_live_without_loss_or_duplicates(engine, listener, start_relay):
    for index in range(20):
        await engine.publish(block(index))
    await start_relay(engine)
    for index in range(20, 40):
        await engine.publish(block(index))
    await eventually(lambda: listener.held == gpu(*range(40)))
    assert listener.sequence == list(range(40))
    await eventually(lambda: listener.heartbeats and listener.stream.seq == 39)
    assert listener.stream.count == 40
    assert listener.stream.digest == listener.digest


@pytest.mark.parametrize("old_framing", [True, False])
@pytest.mark.parametrize("as_map", [True, False])
async def test_every_framing_and_encoding(old_framing, as_map, listener, start_relay):
    engine = FakeEngine(old_framing=old_framing)
    await engine.start()
    try:
        await engine.publish(block(0, as_map=as_map), block(1, as_map=as_map))
        await start_relay(engine)
        await eventually(lambda: listener.held == gpu(0, 1))
        await engine.publish(removed([501], as_map=as_map))
        await eventually(lambda: listener.held == gpu(0))
        await engine.publish(cleared(as_map=as_map))
        await eventually(lambda: listener.held == set())
    finally:
        await engine.stop()


async def test_heartbeat_describes_the_engine(engine, listener, start_relay):
    await start_relay(engine)
    await eventually(lambda: listener.heartbeats and listener.stream.running == 3)
    beat = listener.heartbeats[-1]
    assert (beat.instance, beat.url, beat.model, beat.models) == ("e1", engine.url, "m", ["m"])
    assert (beat.engine, beat.role, beat.capacity_tokens) == ("vllm 0.33.0", "both", 1600)
    assert (listener.stream.waiting, listener.stream.kv_usage) == (1, 0.5)
    assert 0 <= listener.stream.load_age_s < 5


async def test_gap_is_filled_by_replay(engine, listener, start_relay):
    await engine.publish(block(0))
    await start_relay(engine)
    await eventually(lambda: listener.held == gpu(0))
    await engine.publish(block(1), send=False)
    await engine.publish(block(2), send=False)
    await engine.publish(block(3))
    await eventually(lambda: listener.held == gpu(0, 1, 2, 3))
    assert listener.sequence == [0, 1, 2, 3]
    assert len({batch.epoch for batch in listener.batches}) == 1


async def test_last_message_that_was_lost_is_found_by_asking(engine, listener, start_relay):
    await engine.publish(block(0))
    await start_relay(engine)
    await eventually(lambda: listener.held == gpu(0))
    await engine.publish(block(1), send=False)
    await eventually(lambda: listener.held == gpu(0, 1))


async def test_gap_that_cannot_be_filled_starts_an_epoch(engine, listener, start_relay):
    await engine.publish(block(0))
    await start_relay(engine)
    await eventually(lambda: listener.held == gpu(0))
    engine.buffer_size = 2
    for _ in range(3):
        await engine.publish(removed([500]), send=False)
    other = TOKENS[500:516]
    await engine.publish(stored([9], None, other))
    expected = {("gpu", block_hashes(other, 16, MODEL_SEED)[0])}
    await eventually(lambda: listener.held == expected)
    assert listener.batches[-1].epoch > listener.batches[0].epoch
    assert listener.batches[-1].seq == 0


async def test_without_replay_a_gap_starts_an_epoch(engine, listener, start_relay):
    engine.has_replay = False
    await start_relay(engine)
    await eventually(lambda: listener.heartbeats)
    while not listener.batches:
        await engine.publish(stored([1], None, TOKENS[:16]))
        await asyncio.sleep(0.05)
    first = listener.batches[0].epoch
    await engine.publish(block(0), send=False)
    await engine.publish(block(0))
    await eventually(lambda: listener.batches[-1].epoch > first)
    assert listener.held == gpu(0)


async def test_restart_shows_as_numbers_from_zero(engine, listener, start_relay):
    for index in range(5):
        await engine.publish(block(index))
    await start_relay(engine)
    await eventually(lambda: listener.held == gpu(*range(5)))
    engine.restart()
    await engine.publish(block(0))
    await eventually(lambda: listener.held == gpu(0))
    assert listener.batches[-1].epoch > listener.batches[0].epoch
    await engine.publish(block(1))
    await eventually(lambda: listener.held == gpu(0, 1))
    await eventually(lambda: listener.stream.count == 2)
    assert listener.stream.epoch == listener.batches[-1].epoch


async def test_idle_restart_is_found_by_the_process_start_time(engine, listener, start_relay):
    for index in range(5):
        await engine.publish(block(index))
    await start_relay(engine)
    await eventually(lambda: listener.held == gpu(*range(5)))
    await eventually(lambda: listener.heartbeats and listener.stream.running is not None)
    engine.restart()
    engine.started += 60
    await eventually(lambda: listener.stream.epoch > listener.batches[-1].epoch)
    assert listener.stream.count == 0


async def test_same_process_with_another_start_time_keeps_its_content(
    engine, listener, start_relay
):
    await engine.publish(block(0))
    await start_relay(engine)
    await eventually(lambda: listener.held == gpu(0))
    await eventually(lambda: listener.heartbeats and listener.stream.running is not None)
    asked = len(engine.replay_requests)
    engine.started += 1
    await eventually(lambda: len(engine.replay_requests) > asked)
    await engine.publish(block(1))
    await eventually(lambda: listener.held == gpu(0, 1))
    assert listener.sequence == [0, 1]


async def test_silent_while_the_engine_is_down(engine, listener, start_relay):
    await engine.publish(block(0))
    await start_relay(engine)
    await eventually(lambda: listener.held == gpu(0))
    await engine.stop_http()
    await asyncio.sleep(1.0)
    beats = len(listener.heartbeats)
    await asyncio.sleep(0.5)
    assert len(listener.heartbeats) == beats
    engine.restart()
    await engine.start_http()
    await eventually(lambda: len(listener.heartbeats) > beats and listener.stream.count == 0)


async def test_snapshot_equals_content(engine, listener, start_relay):
    for index in range(30):
        await engine.publish(block(index))
    await engine.publish(removed([510]), stored([505], None, [], 0, medium="CPU"))
    await start_relay(engine)
    await eventually(lambda: len(listener.batches) == 31)
    chunks = await listener.snapshot("e1")
    assert content(chunks) == listener.held
    assert len(listener.held) == 30
    assert (chunks[0].epoch, chunks[0].seq) == (listener.batches[-1].epoch, 30)
    assert (chunks[0].count, chunks[0].digest) == (30, listener.digest)


async def test_large_snapshot_comes_in_chunks(engine, listener, start_relay):
    tokens = [i % 50_000 for i in range(16 * 40_000)]
    await engine.publish(stored(list(range(1, 40_001)), None, tokens))
    await start_relay(engine)
    await eventually(lambda: len(listener.held) == 40_000)
    assert len(listener.batches) > 1
    chunks = await listener.snapshot("e1")
    assert len(chunks) > 1
    assert all(len(events.encode(chunk)) <= 256 * 1024 for chunk in chunks)
    assert [chunk.chunk for chunk in chunks] == list(range(len(chunks)))
    assert content(chunks) == listener.held


async def test_bad_snapshot_requests_do_no_harm(engine, listener, start_relay):
    await engine.publish(block(0))
    await start_relay(engine)
    await eventually(lambda: listener.held == gpu(0))
    subject = subjects.snapshot("default", "e1")
    await listener.client.publish(subject, b"\xc1", reply="nobody")
    await listener.client.publish(subject, events.encode(events.SnapshotRequest(7)), reply="nobody")
    await listener.client.publish(subject, events.encode(events.SnapshotRequest(0)))
    assert content(await listener.snapshot("e1")) == gpu(0)


async def test_goes_on_while_nats_is_away(engine, listener, start_relay, nats_server):
    await engine.publish(block(0))
    await start_relay(engine)
    await eventually(lambda: listener.held == gpu(0))
    nats_server.stop()
    await eventually(lambda: not listener.client.is_connected)
    for index in range(1, 6):
        await engine.publish(block(index))
    await engine.publish(removed([505]))
    await asyncio.sleep(0.3)
    nats_server.start()
    await eventually(lambda: listener.heartbeats and listener.stream.seq == 6)
    assert listener.stream.count == 5
    assert listener.sequence == [0]
    assert content(await listener.snapshot("e1")) == gpu(0, 1, 2, 3, 4)
    await engine.publish(block(5))
    await eventually(lambda: listener.sequence[-1] == 7)


async def test_starts_before_the_engine_and_before_nats(listener, start_relay, nats_server):
    engine = FakeEngine()
    await engine.start()
    await engine.stop_http()
    nats_server.stop()
    try:
        await start_relay(engine)
        await engine.start_http()
        await engine.publish(block(0))
        nats_server.start()
        await eventually(lambda: listener.heartbeats and listener.stream.count == 1)
        assert content(await listener.snapshot("e1")) == gpu(0)
    finally:
        await engine.stop()


async def test_garbage_is_counted_and_passed_over(engine, listener, start_relay, unused_tcp_port):
    await engine.publish(block(0))
    await engine.publish(raw=b"\xc1 no msgpack")
    await engine.publish({"type": "Novelty"}, block(1))
    await start_relay(engine, port=unused_tcp_port)
    await eventually(lambda: listener.held == gpu(0, 1))
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/metrics") as response:
            page = await response.text()
        async with session.get(f"{url}/health") as response:
            health = await response.json()
    label = '{instance="e1",rank="0"}'
    assert f"warmroute_relay_garbage_messages_total{label} 1.0" in page
    assert 'warmroute_relay_skipped_total{instance="e1",rank="0",reason="unknown_type"} 1.0' in page
    assert health == {"nats": "connected", "engines": {"e1": "up"}}


async def test_endpoints_from_flags(engine, listener, start_relay):
    engine.tells_sources = False
    await engine.publish(block(0))
    target = {
        "kv_events": (f"tcp://*:{engine.pub_port}",),
        "kv_replay": (f"tcp://127.0.0.1:{engine.router_port}",),
    }
    await start_relay(engine, target=target)
    await eventually(lambda: listener.held == gpu(0))


async def test_another_model_is_another_namespace(engine, listener, start_relay):
    await engine.publish(block(0))
    await start_relay(engine)
    await eventually(lambda: listener.held == gpu(0))
    await eventually(lambda: listener.heartbeats and listener.stream.running is not None)
    engine.models = ["other"]
    engine.started += 60
    renamed = {("gpu", block_hashes(TOKENS[:16], 16, namespace_hash("other"))[0])}
    await eventually(lambda: listener.held == renamed)
    assert listener.heartbeats[-1].model == "other"


async def test_orderly_stop_says_goodbye(engine, listener, start_relay):
    await engine.publish(block(0))
    finish = await start_relay(engine)
    await eventually(lambda: listener.held == gpu(0))
    await finish()
    await eventually(lambda: listener.heartbeats[-1].leaving)
    assert not any(beat.leaving for beat in listener.heartbeats[:-1])
