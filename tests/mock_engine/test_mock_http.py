import asyncio
import contextlib
import random

import aiohttp
import msgspec
import pytest
from mock_client import until
from prometheus_client.parser import text_string_to_metric_families

PROMPT = list(range(100, 164))  # 4 blocks of 16


def events_of(body):
    assert body.endswith(b"data: [DONE]\n\n")
    lines = body.removesuffix(b"data: [DONE]\n\n").split(b"\n\n")
    assert lines.pop() == b""
    return [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines]


async def test_a_completion_has_vllms_shape(run_engine):
    async with run_engine() as client:
        answer = await client.complete("hello", max_tokens=5)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert (choice["index"], choice["finish_reason"], len(choice["text"])) == (0, "length", 5)
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 5,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_completion_streams_byte_for_byte_as_vllm(run_engine):
    async with run_engine(model="m", seed=3) as client:
        whole = await client.complete("hello", max_tokens=3)
        body = {"prompt": "hello", "max_tokens": 3, "stream": True}
        headers = {"X-Request-Id": "abc"}
        async with client.post("/v1/completions", body, headers=headers) as response:
            raw = await response.read()
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert response.headers["x-request-id"] == "abc"
    created = events_of(raw)[0]["created"]
    expected = "".join(
        f'data: {{"id":"cmpl-abc","object":"text_completion","created":{created},"model":"m",'
        f'"choices":[{{"index":0,"text":"{letter}","logprobs":null,"finish_reason":{reason},'
        f'"stop_reason":null}}],"usage":null}}\n\n'
        for letter, reason in zip(
            whole["choices"][0]["text"], ("null", "null", '"length"'), strict=True
        )
    )
    assert raw == expected.encode() + b"data: [DONE]\n\n"


async def test_usage_is_streamed_only_when_asked_for(run_engine):
    body = {"prompt": PROMPT, "max_tokens": 2, "stream": True}
    async with run_engine() as client:
        async with client.post("/v1/completions", body) as response:
            assert len(events_of(await response.read())) == 2
        body["stream_options"] = {"include_usage": True}
        async with client.post("/v1/completions", body) as response:
            *_, last = events_of(await response.read())
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 64,
        "total_tokens": 66,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 48},
    }


async def test_a_chat_streams_the_role_first(run_engine):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 3}
    async with run_engine() as client:
        whole = await client.json("/v1/chat/completions", body)
        async with client.post("/v1/chat/completions", {**body, "stream": True}) as response:
            chunks = events_of(await response.read())
    assert whole["object"] == "chat.completion"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    message = whole["choices"][0]["message"]
    assert "".join(delta["content"] for delta in deltas) == message["content"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None, None, None, "length"]


async def test_an_answered_chat_is_cached_with_its_answer(run_engine):
    turn = {"role": "user", "content": "tell me something long enough for a block"}
    async with run_engine() as client:
        first = await client.json("/v1/chat/completions", {"messages": [turn], "max_tokens": 64})
        answer = first["choices"][0]["message"]
        more = {"messages": [turn, answer, turn], "max_tokens": 1}
        second = await client.json("/v1/chat/completions", more)
    # All but the answer's last token, whose KV is never computed, in whole blocks.
    known = first["usage"]["total_tokens"] - 1
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == known // 16 * 16


@pytest.mark.parametrize(("length", "cached"), [(64, 48), (65, 64), (79, 64), (16, 0)])
async def test_a_repeated_prompt_is_cached_up_to_its_last_token(run_engine, length, cached):
    prompt = list(range(1000, 1000 + length))
    async with run_engine() as client:
        assert await client.cached(prompt) == 0
        assert await client.cached(prompt) == cached


async def test_a_salt_separates_caches(run_engine):
    prompt = [*PROMPT, 7]
    async with run_engine() as client:
        assert await client.cached(prompt, cache_salt="a") == 0
        assert await client.cached(prompt) == 0
        assert await client.cached(prompt, cache_salt="b") == 0
        assert await client.cached(prompt, cache_salt="a") == 64
        assert len(client.engine.held()) == 3 * 4


async def test_a_list_of_prompts_gives_a_choice_for_each(run_engine):
    async with run_engine() as client:
        both = await client.complete(["one", "two"], max_tokens=4)
        one = await client.complete("one", max_tokens=4)
        body = {"prompt": [[1, 2], [3]], "max_tokens": 2, "stream": True}
        async with client.post("/v1/completions", body) as response:
            chunks = events_of(await response.read())
    assert [choice["index"] for choice in both["choices"]] == [0, 1]
    assert both["choices"][0]["text"] == one["choices"][0]["text"]
    assert both["usage"]["completion_tokens"] == 8
    assert sorted(chunk["choices"][0]["index"] for chunk in chunks) == [0, 0, 1, 1]


async def test_output_depends_on_seed_and_prompt_only(run_engine):
    texts = []
    for seed in (1, 1, 2):
        async with run_engine(seed=seed) as client:
            answer = await client.complete("hello", max_tokens=20)
            texts.append(answer["choices"][0]["text"])
    assert texts[0] == texts[1] != texts[2]


BAD_REQUESTS = [
    ("/v1/completions", b"{", 400, "invalid request body"),
    ("/v1/completions", b'{"prompt": "\xff"}', 400, "invalid request body"),
    ("/v1/completions", {"max_tokens": 1}, 400, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, "prompt"),
    ("/v1/completions", {"prompt": ""}, 400, "empty"),
    ("/v1/completions", {"prompt": ["a", 1]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [True]}, 400, "bool"),
    ("/v1/completions", {"prompt": [-1]}, 400, "token ids"),
    ("/v1/completions", {"prompt": [1 << 32]}, 400, "token ids"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 65_536}, 400, "maximum context length"),
    ("/v1/completions", {"prompt": "a", "n": 2}, 400, "n must be 1"),
    ("/v1/completions", {"prompt": "a", "stream_options": {}}, 400, "stream=True"),
    ("/v1/completions", {"prompt": "a", "cache_salt": ""}, 400, "cache_salt"),
    ("/v1/completions", {"prompt": "a", "model": "other"}, 404, "does not exist"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"content": "a"}]}, 400, "role"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 1}]}, 400, "content"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "text parts",
    ),
    ("/tokenize", {"prompt": 1}, 400, "prompt"),
    ("/tokenize", b"[]", 400, "object"),
    ("/tokenize", {"prompt": "a", "model": "other"}, 404, "does not exist"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
    ("/mock/fault", {"unknown": 1}, 400, "unknown"),
]


async def test_bad_requests_get_vllms_error(run_engine):
    async with run_engine() as client:
        for path, body, status, words in BAD_REQUESTS:
            error = (await client.json(path, body, status=status))["error"]
            assert words in error["message"], (path, body, error)
            assert error["code"] == status
            assert error["type"] in {"BadRequestError", "NotFoundError"}
        assert client.engine.model.stats().arrived == 0


async def test_tokens_and_text_go_both_ways(run_engine):
    async with run_engine() as client:
        tokens = await client.json("/tokenize", {"prompt": "h\u00e9"})
        assert tokens["tokens"] == [byte + 3 for byte in "h\u00e9".encode()]
        assert (tokens["count"], tokens["max_model_len"]) == (3, 65_536)
        text = await client.json("/detokenize", {"tokens": [*tokens["tokens"], 500_000]})
        assert text == {"prompt": "h\u00e9\ufffd"}
        long = await client.json("/tokenize", {"prompt": "x" * 20_000})
        assert long["count"] == 20_000
        chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
        rendered = await client.json("/tokenize", chat)
        back = await client.json("/detokenize", {"tokens": rendered["tokens"]})
        assert back == {"prompt": "<|user|>\nhi\n<|assistant|>\n"}
        answer = await client.json("/v1/chat/completions", {**chat, "max_tokens": 1})
        assert answer["usage"]["prompt_tokens"] == rendered["count"]


async def test_what_a_relay_asks_is_answered(run_engine):
    async with run_engine(model="m", capacity_tokens=1600, topic="kv") as client:
        assert (await client.json("/version"))["version"]
        (card,) = (await client.json("/v1/models"))["data"]
        assert (card["id"], card["max_model_len"]) == ("m", 1600)
        sources = await client.json("/kv_event_sources")
        assert sources["0"]["endpoint"] == client.engine.kv_events
        assert sources["0"]["replay_endpoint"] == client.engine.kv_replay
        assert sources["0"]["topic"] == "kv"
        async with client.session.get(client.engine.url + "/health") as response:
            assert response.status == 200


async def test_metrics_tell_load_and_hits(run_engine):
    async with run_engine(model='quoted"name', capacity_tokens=1600) as client:
        await client.cached([*PROMPT, 1])
        await client.cached([*PROMPT, 2])
        async with client.session.get(client.engine.url + "/metrics") as response:
            text = await response.text()
    samples = {
        sample.name: sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    labels = {"model_name": 'quoted"name', "engine": "0"}
    assert samples["vllm:num_requests_running"].labels == labels
    assert samples["vllm:num_requests_running"].value == 0
    assert samples["vllm:num_requests_waiting"].value == 0
    assert samples["vllm:kv_cache_usage_perc"].value == 0
    assert samples["vllm:prefix_cache_queries_total"].value == 130
    assert samples["vllm:prefix_cache_hits_total"].value == 64
    assert samples["vllm:prompt_tokens_total"].value == 130
    assert samples["vllm:generation_tokens_total"].value == 2
    assert samples["vllm:cache_config_info"].labels["block_size"] == "16"
    assert samples["vllm:cache_config_info"].labels["num_gpu_blocks"] == "100"
    assert samples["process_start_time_seconds"].value > 1.6e9


async def test_a_client_that_leaves_aborts_its_request_at_once(run_engine):
    async with run_engine(speed=1.0) as client:
        stats = client.engine.model.stats
        for stream in (True, False):
            body = {"prompt": PROMPT, "max_tokens": 60_000, "stream": stream}
            task = asyncio.create_task(_read_forever(client, body))
            await until(lambda: stats().running == 1)
            task.cancel()
            await until(lambda: stats().running == 0)
        assert stats().aborted == 2
        assert stats().kv_usage == 0
        assert len(client.engine.held()) >= 4


async def _read_forever(client, body):
    async with client.post("/v1/completions", body) as response:
        await response.read()


async def test_impatient_clients_leave_nothing_behind(run_engine, caplog):
    draw = random.Random(4)
    settings = {"capacity_tokens": 4000, "max_seqs": 32, "max_batched_tokens": 512}
    async with run_engine(**settings) as client:

        async def one(number):
            prompt = [number % 7] * draw.randrange(1, 900) + [number]
            body = {
                "prompt": prompt,
                "max_tokens": draw.randrange(1, 200),
                "stream": number % 2 > 0,
            }
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(draw.choice([0.02, 0.1, 60])):
                    await _read_forever(client, body)

        await asyncio.gather(*(one(number) for number in range(200)))
        stats = client.engine.model.stats
        await until(lambda: stats().running + stats().waiting == 0)
        assert stats().arrived == stats().finished + stats().aborted
        assert stats().kv_usage == 0
        assert client.engine.held().keys() == client.engine.model.held_hashes()
    assert not caplog.records


async def test_a_reset_waits_for_idleness(run_engine):
    async with run_engine(speed=1.0) as client:
        task = asyncio.create_task(_read_forever(client, {"prompt": PROMPT, "max_tokens": 60_000}))
        await until(lambda: client.engine.model.stats().running == 1)
        assert await client.json("/reset_prefix_cache", b"") == {"success": False}
        task.cancel()
        await until(lambda: client.engine.model.stats().running == 0)
        assert await client.json("/reset_prefix_cache", b"") == {"success": True}
        assert client.engine.held() == {}


async def test_faults_refuse_pause_and_reset(run_engine):
    async with run_engine() as client:
        await client.json("/mock/fault", {"refuse": True})
        error = await client.json("/v1/completions", {"prompt": "a"}, status=503)
        assert error["error"]["type"] == "ServiceUnavailableError"

        state = await client.json("/mock/fault", {"paused": True})
        assert (state["refuse"], state["paused"]) == (False, True)
        waiting = asyncio.create_task(client.complete("a"))
        await until(lambda: client.engine.model.stats().waiting == 1)
        await client.json("/mock/fault", {})
        await waiting

        await client.json("/mock/fault", {"reset_after_tokens": 2})
        body = {"prompt": "a", "max_tokens": 5, "stream": True}
        received = []
        async with client.post("/v1/completions", body) as response:
            with pytest.raises(aiohttp.ClientError):
                await _read_into(received, response)
        assert b"".join(received).count(b"data: ") <= 2
        await until(lambda: client.engine.model.stats().running == 0)
        assert client.engine.model.stats().aborted == 1


async def _read_into(parts, response):
    async for part in response.content.iter_any():
        parts.append(part)


async def test_time_runs_as_the_profile_says(run_engine):
    loop = asyncio.get_running_loop()
    async with run_engine(speed=10.0, profile="llama-8b-h100") as client:
        began_s = loop.time()
        await client.complete("a", max_tokens=100)
        took_s = loop.time() - began_s
    # 100 steps of 8.5 ms at ten times the speed.
    assert 0.085 <= took_s < 0.8
