"""What clients may ask, and how the router says no."""

import asyncio
import json
import socket

import pytest
from router_harness import (
    MODELS,
    Engine,
    answer,
    ask,
    complete,
    connected,
    dead_url,
    eventually,
    metric,
    request_bytes,
    routed,
)

from router.config import RouterConfig
from router.service import Router, running

CHATS = [
    {"messages": [{"role": "user", "content": "hi"}]},
    {"messages": [{"role": "user", "content": None}], "tools": None},
    {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    {"messages": [], "cache_salt": "s", "stream": None},
    {"messages": "odd"},
]
PROMPTS = ["text", ["one"], ["one", "two"], [1, 2, 3], [[1, 2], [3]], [], None, [-1], 7]


def error_of(reply):
    assert reply.one("content-type") == "application/json"
    error = json.loads(reply.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("chat", CHATS)
async def test_every_shape_of_chat_is_passed_on(chat):
    engine = Engine()
    body = json.dumps({"model": "m", **chat}).encode()
    async with routed(engine) as router:
        assert (await ask(router, "POST", "/v1/chat/completions", body)).status == 200
    assert engine.seen[0].body == body


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_every_form_of_prompt_is_passed_on(prompt):
    engine = Engine()
    async with routed(engine) as router:
        assert (await complete(router, json.dumps({"prompt": prompt}).encode())).status == 200
    assert len(engine.seen) == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"{" * 100_000])
async def test_broken_json_is_a_400(body):
    engine = Engine()
    async with routed(engine) as router:
        reply = await complete(router, body)
    assert (reply.status, error_of(reply)["code"]) == (400, "bad_json")
    assert not engine.seen


@pytest.mark.parametrize("body", [b'{"temperature": NaN}', b'{"prompt":"\\ud800"}'])
async def test_what_is_not_quite_json_is_the_engines_to_judge(body):
    async with routed(Engine()) as router:
        assert (await complete(router, body)).status == 200


async def test_an_unknown_model_is_a_404_that_names_the_known_ones():
    async with routed(Engine(), dead_urls=[dead_url()]) as router:
        reply = await complete(router, b'{"model":"other","prompt":"x"}')
    assert (reply.status, error_of(reply)["code"]) == (404, "model_not_found")
    assert "available: m" in error_of(reply)["message"]


async def test_a_model_that_is_down_is_a_503_not_a_404():
    engine, other = Engine(), Engine(models=MODELS.replace(b'"m"', b'"n"'))
    async with routed(engine, other) as router:
        await engine.stop()
        await eventually(lambda: router.endpoints.count("down") == 1)
        reply = await complete(router)
    assert (reply.status, error_of(reply)["code"]) == (503, "no_instance")


async def test_requests_go_to_engines_that_serve_their_model():
    one, two = Engine(), Engine(models=MODELS.replace(b'"m"', b'"n"'))
    async with routed(one, two) as router:
        for _ in range(6):
            assert (await complete(router, b'{"model":"n","prompt":"x"}')).status == 200
    assert (len(one.seen), len(two.seen)) == (0, 6)


async def test_a_body_above_the_limit_is_a_413():
    engine = Engine()
    async with routed(engine, max_payload_bytes=1000) as router:
        for target in ("/v1/completions", "/other"):
            reply = await ask(router, "POST", target, b"x" * 1001)
            assert (reply.status, error_of(reply)["code"]) == (413, "body_too_large")
        async with connected(router.url) as connection:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.writer.write(head + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n")
            assert (await connection.reply()).status == 413
    assert not engine.seen


async def test_models_are_merged_from_live_engines():
    one = Engine()
    two = Engine(models=b'{"object":"list","data":[{"id":"m"},{"id":"n","root":"r"}]}')
    async with routed(one, two, dead_urls=[dead_url()]) as router:
        reply = await ask(router, "GET", "/v1/models")
        assert {card["id"] for card in json.loads(reply.body)["data"]} == {"m", "n"}
        assert json.loads(reply.body)["object"] == "list"
        assert not one.seen + two.seen
        assert (await ask(router, "HEAD", "/v1/models")).status == 200


async def test_models_work_before_the_first_probe():
    async with routed(Engine(), dead_urls=[dead_url()], settle=False) as router:
        assert b'"m"' in (await ask(router, "GET", "/v1/models")).body


async def test_an_engine_that_hides_its_models_is_asked_by_the_client_itself():
    engine = Engine(answer(b'{"error":"key"}', "401 No"), models=b"not json")
    async with routed(engine, settle=False) as router:
        reply = await ask(router, "GET", "/v1/models")
    assert reply.status in (200, 401)


async def test_requests_on_other_paths_count_as_load():
    go = asyncio.Event()

    async def script(seen, writer):
        if seen.target == "/slow":
            await go.wait()
        await answer()(seen, writer)

    engines = [Engine(script), Engine(script)]
    async with routed(*engines) as router:
        slow = [asyncio.ensure_future(ask(router, "POST", "/slow", b"x")) for _ in range(4)]
        await eventually(lambda: [len(engine.seen) for engine in engines] == [2, 2])
        go.set()
        await asyncio.gather(*slow)
        assert metric(router, "open_leases") == 0


async def test_only_the_key_opens_client_routes():
    engine = Engine()
    async with routed(engine, api_key="secret") as router:
        for headers in ([], ["Authorization: Bearer wrong"], ["Authorization: secret"]):
            for target in ("/v1/completions", "/anything", "/workers", "/metrics"):
                reply = await ask(router, "POST", target, b"{}", headers)
                assert (reply.status, error_of(reply)["code"]) == (401, "invalid_api_key")
        for target in ("/health", "/live", "/ready"):
            assert (await ask(router, "GET", target)).status == 200
        assert (await complete(router, headers=["Authorization: Bearer secret"])).status == 200
    assert len(engine.seen) == 1
    assert not engine.seen[0].all("authorization")


async def test_own_pages():
    engine = Engine()
    async with routed(engine) as router:
        assert (await ask(router, "GET", "/health")).status == 200
        assert (await ask(router, "HEAD", "/health")).status == 200
        assert (await ask(router, "GET", "/ready")).status == 200
        page = (await ask(router, "GET", "/metrics")).body
        engine.health = 500
        await eventually(lambda: not router.endpoints.is_ready())
        assert (await ask(router, "GET", "/ready")).status == 503
    assert b'warmroute_router_instances{state="up"} 1.0' in page
    assert b"warmroute_router_open_leases 0.0" in page


async def test_metrics_have_a_listener_of_their_own():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = RouterConfig(
        host="127.0.0.1", port=0, prometheus_host="127.0.0.1", prometheus_port=port, api_key="k"
    )
    clock = asyncio.get_running_loop().time
    async with (
        running(Router(config, clock, lambda: "id")) as router,
        connected(router.metrics_url) as connection,
    ):
        connection.writer.write(request_bytes("GET", "/metrics"))
        assert b"warmroute_router_" in (await connection.reply()).body
        connection.writer.write(request_bytes("GET", "/v1/models"))
        assert (await connection.reply()).status == 404
