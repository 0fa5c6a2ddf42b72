"""What goes through the router comes out as it went in."""

import asyncio
import gzip
import json

import pytest
from router_harness import Engine, answer, ask, chunk, complete, connected, request_bytes, routed


async def test_the_body_reaches_the_engine_byte_for_byte():
    engine = Engine()
    body = b'{ "model":"m" ,\n "prompt":"\xc3\xa9\\u00e9", "x":null, "tools":[{}], "model":"m" }'
    async with routed(engine) as router:
        assert (await complete(router, body)).status == 200
    assert engine.seen[0].body == body
    assert engine.seen[0].all("content-length") == [str(len(body))]


async def test_client_headers_reach_the_engine_and_hop_by_hop_ones_do_not():
    engine = Engine()
    sent = [
        "X-Session-ID: abc",
        "x-twice: 1",
        "x-twice: 2",
        "Authorization: Bearer theirs",
        "Content-Type: application/json",
        "Connection: close, x-private",
        "X-Private: no",
        "TE: trailers",
    ]
    async with routed(engine) as router:
        await complete(router, headers=sent)
    seen = engine.seen[0]
    assert seen.all("x-twice") == ["1", "2"]
    assert seen.all("x-session-id") == ["abc"]
    assert seen.all("authorization") == ["Bearer theirs"]
    assert seen.all("content-type") == ["application/json"]
    assert seen.all("host") == [engine.name]
    assert not seen.all("x-private") + seen.all("te") + seen.all("connection")


async def test_nothing_is_added_to_a_request_but_an_id():
    engine = Engine()
    async with routed(engine) as router:
        await complete(router)
    names = {name.lower() for name, _ in engine.seen[0].headers}
    assert names == {"host", "content-length", "x-request-id"}


async def test_a_request_id_is_kept():
    engine = Engine()
    async with routed(engine) as router:
        await complete(router, headers=["X-Request-Id: mine"])
    assert engine.seen[0].all("x-request-id") == ["mine"]


async def test_response_headers_come_back_once_each_and_repeated_ones_repeated():
    script = answer(
        b"{}",
        "200 Fine",
        [
            "Set-Cookie: a=1; Path=/",
            "Set-Cookie: b=2",
            "Server: engine",
            "Date: Mon, 01 Jan 2024 00:00:00 GMT",
            "X-Engine: yes",
            "Keep-Alive: timeout=5",
        ],
    )
    engine = Engine(script)
    async with routed(engine) as router:
        reply = await complete(router)
    assert (reply.status, reply.reason) == (200, "Fine")
    assert reply.all("set-cookie") == ["a=1; Path=/", "b=2"]
    assert reply.one("server") == "engine"
    assert reply.one("date") == "Mon, 01 Jan 2024 00:00:00 GMT"
    assert reply.one("x-engine") == "yes"
    assert reply.one("x-warmroute-instance") == engine.name
    assert not reply.all("keep-alive")


async def test_headers_the_engine_did_not_send_are_not_made_up():
    async def bare(_seen, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async with routed(Engine(bare)) as router:
        reply = await ask(router, "GET", "/plain")
    assert not reply.all("server") + reply.all("content-type")
    assert reply.body == b"hi"


async def test_a_compressed_answer_stays_compressed():
    packed = gzip.compress(b'{"ok":true}')
    engine = Engine(answer(packed, headers=["Content-Encoding: gzip"]))
    async with routed(engine) as router:
        reply = await complete(router, headers=["Accept-Encoding: gzip"])
    assert engine.seen[0].all("accept-encoding") == ["gzip"]
    assert reply.one("content-encoding") == "gzip"
    assert reply.body == packed


async def test_a_compressed_request_is_passed_on_unread():
    packed = gzip.compress(b'{"model":"m"}')
    engine = Engine()
    async with routed(engine) as router:
        reply = await complete(router, packed, ["Content-Encoding: gzip"])
    assert reply.status == 200
    assert engine.seen[0].body == packed


@pytest.mark.parametrize("target", ["/v1/completions", "/v1/other"])
async def test_a_chunked_upload_arrives_whole(target):
    engine = Engine()
    parts = [b'{"model":"m",', b'"prompt":"', b"x" * 100_000, b'"}']
    async with routed(engine) as router, connected(router.url) as connection:
        head = f"POST {target} HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.writer.write(head.encode())
        for part in parts:
            connection.writer.write(chunk(part))
            await asyncio.sleep(0.01)
        connection.writer.write(b"0\r\n\r\n")
        assert (await connection.reply()).status == 200
    assert engine.seen[0].body == b"".join(parts)


async def test_path_and_query_are_not_touched():
    engine = Engine()
    targets = ["/tokenize?a=%2F&b=x+y&b=", "//two//slashes", "/caf%C3%A9/%20", "/a/../b?q=1#x"]
    async with routed(engine) as router:
        for target in targets[:3]:
            assert (await ask(router, "GET", target)).status == 200
    assert [seen.target for seen in engine.seen] == targets[:3]


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "GET", "POST"])
async def test_any_method_passes(method):
    engine = Engine(answer(b"done", headers=["Allow: GET"]))
    async with routed(engine) as router:
        reply = await ask(router, method, "/some/path", b"data")
    assert (engine.seen[0].method, engine.seen[0].body) == (method, b"data")
    assert (reply.body, reply.one("allow")) == (b"done", "GET")


async def test_head_keeps_the_length_and_has_no_body():
    async def head_only(_seen, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n")

    async with routed(Engine(head_only)) as router, connected(router.url) as connection:
        for _ in range(2):
            connection.writer.write(request_bytes("HEAD", "/file"))
            reply = await connection.reply("HEAD")
            assert (reply.status, reply.one("content-length")) == (200, "1234")


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_answers_without_a_body(status):
    async def empty(_seen, writer):
        writer.write(f"HTTP/1.1 {status}\r\nETag: x\r\n\r\n".encode())

    async with routed(Engine(empty)) as router:
        reply = await ask(router, "GET", "/x")
    assert (f"{reply.status} {reply.reason}", reply.one("etag")) == (status, "x")


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "422 Nope", "500 Oh"])
async def test_an_engines_error_answer_is_unchanged(status):
    body = b'{"object":"error","message":"as is"}'
    engine = Engine(answer(body, status, ["Content-Type: application/problem+json"]))
    async with routed(engine, Engine(answer(body, status))) as router:
        reply = await complete(router)
    assert (f"{reply.status} {reply.reason}", reply.body) == (status, body)


async def test_a_large_body_arrives_whole():
    engine = Engine()
    body = json.dumps({"model": "m", "prompt": "y" * (8 << 20)}).encode()
    async with routed(engine) as router:
        assert (await complete(router, body)).status == 200
    assert engine.seen[0].body == body


async def test_one_connection_serves_many_requests_in_order():
    async def echo(seen, writer):
        await answer(seen.target.encode())(seen, writer)

    async with routed(Engine(echo)) as router, connected(router.url) as connection:
        for number in range(20):
            connection.writer.write(request_bytes("GET", f"/n/{number}"))
        for number in range(20):
            assert (await connection.reply()).body == f"/n/{number}".encode()


async def test_equal_request_ids_at_the_same_time_are_separate_requests():
    async def echo(seen, writer):
        await asyncio.sleep(0.05)
        await answer(seen.body)(seen, writer)

    bodies = [json.dumps({"model": "m", "prompt": f"p{n}"}).encode() for n in range(20)]
    engines = [Engine(echo), Engine(echo)]
    async with routed(*engines) as router:
        replies = await asyncio.gather(
            *(complete(router, body, ["X-Request-Id: same"]) for body in bodies)
        )
    assert [reply.body for reply in replies] == bodies
    assert all(len(engine.seen) == 10 for engine in engines)


async def test_connections_to_an_engine_are_used_again():
    engine = Engine()
    async with routed(engine) as router:
        for _ in range(20):
            await complete(router)
    assert engine.connections <= 4


async def test_an_upload_that_waits_to_be_invited_is_invited():
    engine = Engine()
    async with routed(engine) as router, connected(router.url) as connection:
        connection.writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert b"100" in await connection.reader.readuntil(b"\r\n\r\n")
        connection.writer.write(b"{}")
        assert (await connection.reply()).status == 200
    assert not engine.seen[0].all("expect")
