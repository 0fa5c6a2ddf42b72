"""A client that leaves takes its engine request along, in whatever phase it was."""

import asyncio

import pytest
from router_harness import (
    STREAM_HEAD,
    Engine,
    chunk,
    connected,
    eventually,
    metric,
    request_bytes,
    routed,
)

BODY = b'{"model":"m","prompt":"hello","stream":true}'


def engine_that_stops_after(sent):
    reached = asyncio.Event()

    async def script(_seen, writer):
        writer.write(sent)
        await writer.drain()
        reached.set()
        await asyncio.Event().wait()

    return Engine(script), reached


PHASES = {
    "before the head": b"",
    "in the prefill, after the head": STREAM_HEAD,
    "mid-stream": STREAM_HEAD + chunk(b"data: 1\n\n"),
    "in a whole answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", ["reset", "close"])
async def test_leaving_frees_the_engine_and_the_lease(phase, how):
    engine, reached = engine_that_stops_after(PHASES[phase])
    async with routed(engine) as router, connected(router.url) as connection:
        connection.writer.write(request_bytes("POST", "/v1/completions", BODY))
        await reached.wait()
        await asyncio.sleep(0.02)
        assert router.dispatcher.leases.open_leases() == 1
        if how == "reset":
            connection.leave()
        else:
            connection.writer.close()
        await eventually(lambda: engine.hung_up == 1, 0.5)
        await eventually(lambda: router.dispatcher.leases.open_leases() == 0, 0.5)
        assert metric(router, "requests_total", path_kind="completions", outcome="client_gone") == 1
        assert metric(router, "open_requests") == 0


async def test_leaving_while_tokens_flow():
    async def script(_seen, writer):
        writer.write(STREAM_HEAD)
        while True:
            writer.write(chunk(b"data: x\n\n"))
            await writer.drain()
            await asyncio.sleep(0.005)

    engine = Engine(script)
    async with routed(engine) as router, connected(router.url) as connection:
        connection.writer.write(request_bytes("POST", "/v1/completions", BODY))
        await connection.reader.readuntil(b"\r\n\r\n")
        connection.leave()
        await eventually(lambda: engine.hung_up == 1, 0.5)
        await eventually(lambda: router.dispatcher.leases.open_leases() == 0, 0.5)


async def test_leaving_during_the_upload_of_a_prompt_asks_no_engine():
    engine = Engine()
    async with routed(engine) as router, connected(router.url) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 1000\r\n\r\n"
        connection.writer.write(head + b'{"model":')
        await eventually(lambda: metric(router, "open_requests") == 1)
        connection.leave()
        await eventually(lambda: metric(router, "open_requests") == 0, 0.5)
    assert not engine.seen


async def test_leaving_during_a_streamed_upload_frees_the_engine():
    engine = Engine()
    async with routed(engine) as router, connected(router.url) as connection:
        connection.writer.write(
            b"POST /upload HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.writer.write(chunk(b"x" * 1000))
        await eventually(lambda: router.dispatcher.leases.open_leases() == 1)
        await asyncio.sleep(0.02)
        connection.leave()
        await eventually(lambda: engine.hung_up == 1, 0.5)
        await eventually(lambda: router.dispatcher.leases.open_leases() == 0, 0.5)
        assert metric(router, "instance_failures_total", instance=engine.name, reason="reset") == 0
