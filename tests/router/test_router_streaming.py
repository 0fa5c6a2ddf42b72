"""Streams: at once, unchanged, and never ended politely when the engine broke off."""

import asyncio

import pytest
from router_harness import (
    STREAM_HEAD,
    Engine,
    chunk,
    complete,
    connected,
    eventually,
    metric,
    request_bytes,
    routed,
)

BODY = b'{"model":"m","prompt":"hello","stream":true}'


async def test_sse_bytes_are_unchanged_whatever_the_splits():
    whole = (
        b': keep-alive\r\n\r\nid: 7\r\nevent: x\r\ndata: {"text":"data: [DONE]"}\r\n\r\n'
        b'data: {"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":48}}}\n\n'
        b"data: [DONE]\n\n"
    )

    async def script(_seen, writer):
        writer.write(STREAM_HEAD)
        for start in range(0, len(whole), 7):
            writer.write(chunk(whole[start : start + 7]))
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")

    async with routed(Engine(script)) as router:
        reply = await complete(router, BODY)
        assert metric(router, "actual_cached_tokens_total") == 48
    assert reply.complete
    assert reply.body == whole


async def test_each_piece_is_relayed_at_once():
    go = asyncio.Event()

    async def script(_seen, writer):
        writer.write(STREAM_HEAD + chunk(b"first"))
        await go.wait()
        writer.write(chunk(b"second") + b"0\r\n\r\n")

    async with routed(Engine(script)) as router, connected(router.url) as connection:
        connection.writer.write(request_bytes("POST", "/v1/completions", BODY))
        await connection.reader.readuntil(b"\r\n\r\n")
        assert await connection.read_chunk() == b"first"
        go.set()
        assert await connection.read_chunk() == b"second"


async def test_the_first_body_byte_ends_the_prefill():
    head_sent, go, end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def script(_seen, writer):
        writer.write(STREAM_HEAD)
        head_sent.set()
        await go.wait()
        writer.write(chunk(b"token"))
        await end.wait()
        writer.write(b"0\r\n\r\n")

    engine = Engine(script)
    body = b'{"model":"m","prompt":[' + b",".join([b"1"] * 4000) + b"]}"
    async with routed(engine) as router:
        pending = asyncio.ensure_future(complete(router, body))
        await head_sent.wait()
        await asyncio.sleep(0.02)
        load = router.dispatcher.leases.load((engine.name, 0))
        assert load.prefilling
        go.set()
        await eventually(lambda: not load.prefilling)
        assert load.in_flight == 1
        end.set()
        assert (await pending).body == b"token"


async def test_an_engine_that_breaks_off_is_visible_and_is_not_replayed():
    async def script(_seen, writer):
        writer.write(STREAM_HEAD + chunk(b"partial"))
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()

    engines = [Engine(script), Engine(script)]
    async with routed(*engines) as router:
        reply = await complete(router, BODY)
        await eventually(
            lambda: (
                metric(router, "requests_total", path_kind="completions", outcome="broken_off") == 1
            )
        )
    assert reply.status == 200
    assert not reply.complete
    assert sum(len(engine.seen) for engine in engines) == 1


async def test_an_answer_shorter_than_announced_is_visible():
    async def script(_seen, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()

    async with routed(Engine(script)) as router:
        reply = await complete(router, BODY)
    assert (reply.complete, reply.body) == (False, b"half")


async def test_an_old_client_sees_a_reset_where_the_end_would_look_orderly():
    async def script(_seen, writer):
        writer.write(STREAM_HEAD + chunk(b"partial"))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async with routed(Engine(script)) as router, connected(router.url) as connection:
        raw = request_bytes("POST", "/v1/completions", BODY).replace(b"HTTP/1.1", b"HTTP/1.0")
        connection.writer.write(raw)
        await connection.reader.readuntil(b"partial")
        with pytest.raises(ConnectionResetError):
            await connection.reader.read()


async def test_an_old_client_gets_a_stream_that_ends_with_the_connection():
    async def script(_seen, writer):
        writer.write(STREAM_HEAD + chunk(b"one") + chunk(b"two") + b"0\r\n\r\n")

    async with routed(Engine(script)) as router, connected(router.url) as connection:
        raw = request_bytes("POST", "/v1/completions", BODY).replace(b"HTTP/1.1", b"HTTP/1.0")
        connection.writer.write(raw)
        assert (await connection.reader.read()).endswith(b"\r\n\r\nonetwo")


async def test_a_slow_reader_slows_the_engine():
    sent = 0

    async def script(_seen, writer):
        nonlocal sent
        writer.write(STREAM_HEAD)
        for _ in range(4000):
            writer.write(chunk(b"x" * 16_384))
            await writer.drain()
            sent += 16_384
        writer.write(b"0\r\n\r\n")

    async with routed(Engine(script)) as router, connected(router.url) as connection:
        connection.reader._limit = 4096  # so that the client's own side takes little
        connection.writer.write(request_bytes("POST", "/v1/completions", BODY))
        await connection.reader.readuntil(b"\r\n\r\n")
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 30 << 20
        connection.leave()
