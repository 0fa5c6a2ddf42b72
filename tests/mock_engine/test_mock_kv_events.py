import asyncio

import msgspec
import pytest
from mock_client import subscribed, until

from bench.mock_engine.config import MockEngineConfig
from bench.mock_engine.engine import MockEngine
from indexer.core.blocks import block_hashes, namespace_hash

PROMPT = list(range(100, 164))  # 4 blocks of 16


async def test_a_stored_batch_as_a_map(run_engine):
    async with run_engine(topic="kv") as client, subscribed(client) as events:
        await client.complete([*PROMPT, 1], max_tokens=1, cache_salt="pepper")
        _, (ts, (event,), rank) = await events.receive()
        assert client.engine.held().keys() >= set(event["block_hashes"])
    assert ts > 1.6e9
    assert rank == 0
    hashes = event.pop("block_hashes")
    assert len(set(hashes)) == 4
    assert all(0 <= name < 1 << 64 for name in hashes)
    assert event == {
        "type": "BlockStored",
        "parent_block_hash": None,
        "token_ids": PROMPT,
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["pepper"], None, None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


async def test_generated_blocks_follow_in_batches_of_their_own(run_engine):
    async with run_engine() as client, subscribed(client) as events:
        await client.complete(PROMPT, max_tokens=33)
        first, (_, (prompt,), _) = await events.receive()
        second, (_, (output,), _) = await events.receive()
    assert second == first + 1
    assert output["parent_block_hash"] == prompt["block_hashes"][-1]
    assert len(output["token_ids"]) == 16


async def test_events_as_positional_arrays_with_removal_first(run_engine):
    small = {"capacity_tokens": 128, "event_encoding": "array"}
    async with run_engine(**small) as client, subscribed(client) as events:
        await client.complete(list(range(500, 596)), max_tokens=1)
        await events.receive()
        await client.complete([*PROMPT, 1], max_tokens=1)
        _, (_, (removed, stored), _) = await events.receive()
    assert removed[0] == "BlockRemoved"
    assert removed[2:] == ["GPU", 0]
    assert stored == [
        "BlockStored",
        stored[1],
        None,
        PROMPT,
        16,
        None,
        "GPU",
        None,
        [None] * 4,
        0,
        "full_attention",
        None,
    ]


async def test_a_reset_is_announced_with_the_next_step_only(run_engine):
    async with run_engine() as client, subscribed(client) as events:
        await client.json("/reset_prefix_cache", b"")
        held = await client.json("/mock/held")
        assert (held["blocks"], held["announced"]) == ([], False)
        assert not await events.live.poll(50)
        await client.complete(PROMPT, max_tokens=1)
        _, (_, (cleared, stored), _) = await events.receive()
        assert (await client.json("/mock/held"))["announced"]
    assert cleared == {"type": "AllBlocksCleared"}
    assert stored["type"] == "BlockStored"


@pytest.mark.parametrize(("framing", "topic_frames"), [("new", [b"kv"]), ("old", [])])
async def test_replay_gives_everything_from_a_sequence_on(run_engine, framing, topic_frames):
    settings = {"replay_framing": framing, "topic": "kv"}
    async with run_engine(**settings) as client, subscribed(client) as events:
        known = (await client.json("/mock/held"))["next_sequence"]
        await client.complete(PROMPT, max_tokens=32)
        live = [await events.receive(), await events.receive()]
        *batches, end = await events.replay_from(known)
        assert end == [b"", *[b""] * len(topic_frames), b"\xff" * 8, b""]
        for frames, (sequence, batch) in zip(batches, live, strict=True):
            assert frames[:-1] == [b"", *topic_frames, sequence.to_bytes(8, "big")]
            assert msgspec.msgpack.decode(frames[-1]) == batch
        assert await events.replay_from(known + 2) == [end]
        await events.replay.send_multipart([b"malformed"])
        assert await events.replay_from(known + 2) == [end]


async def test_replay_remembers_the_last_batches_only(run_engine):
    async with run_engine(buffer_steps=2) as client, subscribed(client) as events:
        for start in range(3):
            await client.complete([start * 1000 + i for i in range(17)], max_tokens=1)
        newest = (await client.json("/mock/held"))["next_sequence"] - 1
        *batches, _ = await events.replay_from(0)
    assert [int.from_bytes(frames[-2], "big") for frames in batches] == [newest - 1, newest]


async def test_dropped_duplicated_and_late_batches(run_engine):
    async with run_engine() as client, subscribed(client) as events:
        following = (await client.json("/mock/held"))["next_sequence"]

        async def one_batch(mark):
            await client.complete([mark] * 17, max_tokens=1)

        await client.json("/mock/fault", {"drop_batches": 1})
        await one_batch(1)
        await client.json("/mock/fault", {"duplicate_batches": 1})
        await one_batch(2)
        first, second = await events.receive(), await events.receive()
        assert first == second
        assert first[0] == following + 1
        assert len(await events.replay_from(following)) == 3

        await client.json("/mock/fault", {"event_delay_s": 0.1})
        await one_batch(3)
        await client.json("/mock/fault", {})
        await one_batch(4)
        assert not await events.live.poll(10)
        assert [(await events.receive())[0] for _ in range(2)] == [following + 2, following + 3]


async def test_held_blocks_come_with_our_own_names(run_engine):
    async with run_engine(model="m") as client:
        await client.complete([*PROMPT, 1], max_tokens=1)
        await client.complete([*PROMPT, 1], max_tokens=1, cache_salt="s")
        held = await client.json("/mock/held")
    expected = {
        *block_hashes(PROMPT, 16, namespace_hash("m")),
        *block_hashes(PROMPT, 16, namespace_hash("m", cache_salt="s")),
    }
    assert {block["own_hash"] for block in held["blocks"]} == expected
    assert held["announced"]
    assert held["block_tokens"] == 16
    assert held["next_sequence"] == 2


async def test_events_add_up_to_the_truth_under_load(run_engine):
    async with run_engine(capacity_tokens=2000) as client, subscribed(client) as events:
        prompts = [[seed % 5, *range(seed % 7 * 40 + 20), seed] for seed in range(60)]
        await asyncio.gather(*(client.complete(prompt, max_tokens=20) for prompt in prompts))
        truth = await client.json("/mock/held")
        assert truth["announced"]
        content = set()
        for frames in (await events.replay_from(0))[:-1]:
            for event in msgspec.msgpack.decode(frames[-1])[1]:
                if event["type"] == "BlockStored":
                    content.update(event["block_hashes"])
                else:
                    content.difference_update(event["block_hashes"])
    assert content == {block["engine_hash"] for block in truth["blocks"]}


async def test_a_second_life_starts_at_zero_with_other_hashes(run_engine):
    async with run_engine() as client:
        engine, url, replay = client.engine, client.engine.url, client.engine.kv_replay
        await client.complete([*PROMPT, 1], max_tokens=1)
        before = engine.held()
        await engine.stop()
        await engine.start()
        assert (engine.url, engine.kv_replay) == (url, replay)
        assert engine.held() == {}
        assert await client.cached([*PROMPT, 1]) == 0
        after = engine.held()
        assert (await client.json("/mock/held"))["next_sequence"] == 1
    assert set(before.values()) == set(after.values())
    assert not before.keys() & after.keys()


async def test_a_fixed_hash_seed_gives_equal_hashes(run_engine):
    held = []
    for _ in range(2):
        async with run_engine(hash_seed=7) as client:
            await client.complete(PROMPT, max_tokens=1)
            held.append(client.engine.held())
    assert held[0] == held[1]


async def test_stopping_cuts_requests_and_pending_events(run_engine):
    async with run_engine(speed=1.0) as client:
        await client.json("/mock/fault", {"event_delay_s": 60})
        body = {"prompt": PROMPT, "max_tokens": 60_000, "stream": True}
        async with client.post("/v1/completions", body) as response:
            await until(lambda: client.engine.model.stats().generated_tokens > 1)
            await client.engine.stop()
            response.close()
        await client.engine.start()


async def test_taken_ports_are_an_os_error(run_engine):
    async with run_engine() as client:
        config = client.engine.config
        for taken in ("port", "kv_events_port", "kv_replay_port"):
            free = dict.fromkeys(("port", "kv_events_port", "kv_replay_port"), 0)
            ports = {**free, taken: getattr(config, taken)}
            with pytest.raises(OSError, match=r"[Aa]ddress"):
                await MockEngine(MockEngineConfig(**ports)).start()
