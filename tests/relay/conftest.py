import asyncio

import pytest
import relay_fakes

from indexer.relay.config import EngineTarget, RelayConfig
from indexer.relay.service import serve


@pytest.fixture
def nats_server(tmp_path):
    server = relay_fakes.NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def engine():
    fake = relay_fakes.FakeEngine()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def listener(nats_server):
    on_bus = relay_fakes.Listener()
    await on_bus.start(nats_server.url)
    yield on_bus
    await on_bus.stop()


@pytest.fixture
async def start_relay(nats_server, listener):
    """Starts a relay for one engine; returns how to stop it before the test ends.

    The engine hides until the relay is on the bus, so that no batch is dropped before.
    """
    running = []

    async def start(engine, **settings):
        engine.is_ready = False
        stop = asyncio.Event()
        target = EngineTarget(engine.url, "e1", **settings.pop("target", {}))
        defaults = {"nats_url": nats_server.url, "heartbeat_s": 0.1, "poll_s": 0.1}
        config = RelayConfig(engines=(target,), **(defaults | settings))
        task = asyncio.create_task(serve(config, stop))
        running.append((stop, task))
        if nats_server.is_running:
            await listener.until_answered("e1")
        engine.is_ready = True

        async def finish():
            stop.set()
            await task

        return finish

    yield start
    for stop, task in running:
        stop.set()
        await task
