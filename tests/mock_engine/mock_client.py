import asyncio
from contextlib import asynccontextmanager

import msgspec
import zmq
import zmq.asyncio

DEADLINE_S = 10.0


class Client:
    """A client of one running mock engine."""

    def __init__(self, engine, session):
        self.engine = engine
        self.session = session

    def post(self, path, body, **options):
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self.session.post(self.engine.url + path, data=data, **options)

    async def json(self, path, body=None, status=200):
        request = (
            self.session.get(self.engine.url + path) if body is None else self.post(path, body)
        )
        async with request as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def complete(self, prompt, max_tokens=4, **fields):
        body = {"prompt": prompt, "max_tokens": max_tokens, **fields}
        return await self.json("/v1/completions", body)

    async def cached(self, prompt, **fields):
        usage = (await self.complete(prompt, max_tokens=1, **fields))["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]


class Events:
    """Both sockets of an engine's KV events."""

    def __init__(self, engine):
        self.context = zmq.Context()
        self.live = self.socket(zmq.SUB, engine.kv_events)
        self.live.subscribe(engine.config.topic)
        self.replay = self.socket(zmq.DEALER, engine.kv_replay)

    def socket(self, kind, endpoint):
        socket = zmq.asyncio.Socket.from_socket(self.context.socket(kind))
        socket.connect(endpoint)
        return socket

    async def receive(self):
        """Sequence and decoded batch of the next live message."""
        _, sequence, payload = await asyncio.wait_for(self.live.recv_multipart(), DEADLINE_S)
        return int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload)

    async def replay_from(self, first):
        """All frames of the answer, the end marker included."""
        await self.replay.send_multipart([b"", first.to_bytes(8, "big")])
        answers = []
        while True:
            frames = await asyncio.wait_for(self.replay.recv_multipart(), DEADLINE_S)
            answers.append(frames)
            if int.from_bytes(frames[-2], "big", signed=True) == -1:
                return answers

    def close(self):
        self.live.close(linger=0)
        self.replay.close(linger=0)
        self.context.term()


@asynccontextmanager
async def subscribed(client):
    """Events of an engine, once the subscription is known to work."""
    events = Events(client.engine)
    try:
        await settle(client, events)
        yield events
    finally:
        events.close()


async def settle(client, events):
    """Runs requests until one of their batches arrives, then swallows what is still on its way."""
    last = -1
    for attempt in range(200):
        await client.complete([9_000_000 + attempt] * 33, max_tokens=1)
        if await events.live.poll(50):
            break
    while last + 1 < (await client.json("/mock/held"))["next_sequence"]:
        last, _ = await events.receive()


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - any state may be waited for
            await asyncio.sleep(0.005)
