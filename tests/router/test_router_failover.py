"""What is retried, where, how often, and what is never retried."""

import asyncio
import json

import pytest
from router_harness import (
    STREAM_HEAD,
    Engine,
    answer,
    ask,
    complete,
    dead_url,
    eventually,
    metric,
    request_bytes,
    routed,
)

from router.config import ProbeConfig
from router.core.health import HealthConfig
from router.core.retries import RetryConfig

NEVER_PROBED = ProbeConfig(interval_s=1000, timeout_s=0.3, failures_to_down=1000)


async def reset(_seen, writer):
    writer.transport.abort()


async def head_then_reset(_seen, writer):
    writer.write(STREAM_HEAD)
    await writer.drain()
    await asyncio.sleep(0.01)
    writer.transport.abort()


async def silent(_seen, _writer):
    await asyncio.Event().wait()


def code(reply):
    return json.loads(reply.body)["error"]["code"]


async def test_a_refused_connection_is_invisible():
    good = Engine(answer(b'{"from":"good"}'))
    async with routed(good, dead_urls=[dead_url()], settle=False, probes=NEVER_PROBED) as router:
        for _ in range(10):
            reply = await complete(router)
            assert (reply.status, reply.body) == (200, b'{"from":"good"}')


@pytest.mark.parametrize(
    "script", [answer(b"busy", "503 Busy"), answer(b"x", "502 Bad"), reset, head_then_reset]
)
async def test_failures_before_the_first_byte_go_elsewhere(script):
    bad, good = Engine(script), Engine(answer(b"good"))
    async with routed(bad, good, policy="round_robin") as router:
        replies = [await complete(router) for _ in range(4)]
    assert [reply.body for reply in replies] == [b"good"] * 4
    assert len(bad.seen) >= 1
    assert len(good.seen) == 4


@pytest.mark.parametrize(
    "status", ["400 Bad", "404 No", "408 Late", "422 No", "429 Slow", "500 Oh"]
)
async def test_other_errors_are_not_retried(status):
    engines = [Engine(answer(b"{}", status)), Engine(answer(b"{}", status))]
    async with routed(*engines) as router:
        reply = await complete(router)
    assert reply.status == int(status[:3])
    assert sum(len(engine.seen) for engine in engines) == 1


async def test_with_all_busy_the_last_engines_own_answer_comes_back():
    body = b'{"error":{"message":"queue full"}}'
    engines = [Engine(answer(body, "503 Busy", ["X-Why: queue"])) for _ in range(2)]
    async with routed(*engines) as router:
        reply = await complete(router)
    assert (reply.status, reply.reason, reply.body) == (503, "Busy", body)
    assert reply.one("x-why") == "queue"
    assert [len(engine.seen) for engine in engines] == [1, 1]


async def test_a_try_is_limited_to_a_few_engines_and_never_the_same_twice():
    engines = [Engine(answer(b"", "503 Busy")) for _ in range(5)]
    async with routed(*engines, retries=RetryConfig(max_retries=2)) as router:
        await complete(router)
    assert sorted(len(engine.seen) for engine in engines) == [0, 0, 1, 1, 1]


async def test_the_retry_budget_bounds_the_extra_load_of_an_outage():
    engines = [Engine(answer(b"", "503 Busy")) for _ in range(3)]
    retries = RetryConfig(max_retries=2, share=0.2, min_per_s=0, burst=1)
    calm = HealthConfig(failures_to_down=10_000)
    async with routed(*engines, retries=retries, health=calm) as router:
        for _ in range(50):
            await complete(router)
    assert sum(len(engine.seen) for engine in engines) <= 50 + 50 * 0.2 + 1


async def test_no_engine_at_all_is_a_quick_503_with_json():
    async with routed() as router:
        reply = await complete(router)
    assert (reply.status, code(reply)) == (503, "no_instance")
    assert reply.one("retry-after") == "1"
    assert reply.one("content-type") == "application/json"


async def test_only_dead_engines_is_a_quick_503():
    async with routed(
        dead_urls=[dead_url(), dead_url()], settle=False, probes=NEVER_PROBED
    ) as router:
        reply = await asyncio.wait_for(complete(router), 1)
    assert (reply.status, code(reply)) == (503, "no_instance")


async def test_an_engine_that_never_answers_ends_in_504():
    engine = Engine(silent)
    async with routed(engine, request_timeout_s=0.2) as router:
        reply = await complete(router)
        assert (reply.status, code(reply)) == (504, "request_timeout")
        await eventually(lambda: engine.hung_up == 1)


async def test_a_timeout_mid_stream_is_visible():
    async def script(_seen, writer):
        writer.write(STREAM_HEAD + b"1\r\nx\r\n")
        await asyncio.Event().wait()

    async with routed(Engine(script), request_timeout_s=0.2) as router:
        reply = await complete(router)
    assert (reply.status, reply.complete) == (200, False)


async def test_client_errors_do_not_take_an_engine_out():
    engine = Engine(answer(b"{}", "422 No"))
    async with routed(engine) as router:
        for _ in range(20):
            assert (await complete(router)).status == 422


async def test_an_engine_that_fails_fast_gets_little_traffic():
    bad, good = Engine(answer(b"{}", "500 Oh")), Engine()
    async with routed(bad, good) as router:
        statuses = [(await complete(router)).status for _ in range(60)]
    assert statuses.count(200) >= 50
    assert len(bad.seen) <= 10


async def test_with_every_circuit_open_engines_are_still_asked():
    engine = Engine(answer(b"{}", "500 Oh"))
    async with routed(engine) as router:
        assert [(await complete(router)).status for _ in range(10)] == [500] * 10


async def test_a_health_page_that_says_500_takes_an_engine_out_and_200_brings_it_back():
    sick, well = Engine(), Engine()
    async with routed(sick, well) as router:
        sick.health = 500
        await eventually(lambda: router.endpoints.count("down") == 1)
        for _ in range(6):
            await complete(router)
        assert not sick.seen
        sick.health = 200
        await eventually(lambda: router.endpoints.count("up") == 2)
        for _ in range(12):
            await complete(router, b'{"model":"m","prompt":[1]}')
        assert sick.seen


async def test_an_engine_that_returns_gets_traffic_again():
    engine = Engine()
    async with routed(engine) as router:
        port = engine.port
        await engine.stop()
        await eventually(lambda: router.endpoints.count("down") == 1)
        assert (await complete(router)).status == 503
        await engine.start(port)
        await eventually(lambda: router.endpoints.count("up") == 1)
        assert (await complete(router)).status == 200


async def test_a_streamed_body_that_was_read_is_not_sent_again():
    engines = [Engine(answer(b"busy", "503 Busy")) for _ in range(2)]
    async with routed(*engines) as router:
        big = b"x" * (2 << 20)
        reply = await ask(router, "POST", "/upload", big)
    assert (reply.status, reply.body) == (503, b"busy")
    assert [len(engine.seen) for engine in engines].count(1) == 1


async def test_a_broken_upload_is_not_held_against_the_engine():
    from router_harness import connected

    engine = Engine()
    async with routed(engine) as router, connected(router.url) as connection:
        connection.writer.write(
            b"POST /upload HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"5\r\nhello\r\nnonsense\r\n"
        )
        assert (await connection.reply()).status == 400
        assert metric(router, "instance_failures_total", instance=engine.name, reason="reset") == 0
    async with routed(Engine()) as router, connected(router.url) as connection:
        connection.writer.write(
            request_bytes("POST", "/v1/completions", b"", ["Transfer-Encoding: chunked"])
            + b"zz\r\n"
        )
        assert (await connection.reply()).status == 400
