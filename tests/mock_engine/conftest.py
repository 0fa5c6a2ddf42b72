from contextlib import asynccontextmanager

import aiohttp
import pytest
from mock_client import Client

from bench.mock_engine.config import MockEngineConfig
from bench.mock_engine.engine import MockEngine


@pytest.fixture
def run_engine():
    """Starts an engine with a client; `async with run_engine(speed=..., ...) as client`."""

    @asynccontextmanager
    async def run(**settings):
        config = MockEngineConfig(**{"speed": 200.0, "max_model_len": 65_536, **settings})
        async with MockEngine(config) as engine, aiohttp.ClientSession() as session:
            yield Client(engine, session)

    return run
