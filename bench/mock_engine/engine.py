"""One mock engine in this process: sockets, server and engine loop, started and stopped as one."""

import secrets
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from bench.engine.model import EngineModel
from bench.engine.profiles import PROFILES
from bench.mock_engine.config import MockEngineConfig
from bench.mock_engine.engine_loop import EngineLoop
from bench.mock_engine.faults import Faults
from bench.mock_engine.kv_events import EventTranslator
from bench.mock_engine.kv_publisher import KvPublisher
from bench.mock_engine.prompts import PromptBuilder
from bench.mock_engine.server import MockServer
from bench.mock_engine.tokenizer import load_tokenizer

_HASH_BITS = 64
_SHUTDOWN_S = 0.05  # requests in flight are aborted, as vLLM does by default


class MockEngine:
    """A mock engine to be used with `async with`, or `start` and `stop`.

    After `stop` it can be started again on the same ports: a new life with an empty cache, event
    sequence 0 and, unless the configuration fixes it, another hash seed.

    Args:
        config: see there.
        faults: what is broken from the start; may be changed while it runs, with `wake`.

    Raises:
        ValueError: the tokenizer cannot be loaded.
    """

    def __init__(self, config: MockEngineConfig, faults: Faults | None = None) -> None:
        self.config = config
        self.faults = faults or Faults()
        self._tokenizer = load_tokenizer(config.tokenizer)

    async def start(self) -> None:
        """Binds all ports and serves.

        Raises:
            OSError: a port is taken.
        """
        config = self.config
        self.model = EngineModel(
            PROFILES[config.profile],
            config.capacity_tokens,
            config.block_tokens,
            config.max_batched_tokens,
            config.max_seqs,
        )
        self._publisher = KvPublisher(config, self.faults)
        self._publisher.start()
        self._loop = EngineLoop(
            self.model,
            config.speed,
            EventTranslator(config.block_tokens, config.event_encoding),
            self._publisher,
            self.faults,
        )
        self._loop.start()
        try:
            await self._serve()
        except OSError:
            await self.stop()
            raise
        self.config = self._with_ports()

    async def stop(self) -> None:
        """Closes everything; requests in flight are cut off.

        Raises:
            Exception: what the engine loop failed with, if it did.
        """
        await self._runner.cleanup()
        await self._publisher.close()
        await self._loop.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://{self.config.host}:{self.config.port}"

    @property
    def kv_events(self) -> str:
        """ZMQ endpoint of the live events."""
        return self._publisher.live_endpoint

    @property
    def kv_replay(self) -> str:
        """ZMQ endpoint of the replay."""
        return self._publisher.replay_endpoint

    def wake(self) -> None:
        """Lets the engine notice changed faults."""
        self._loop.wake()

    def held(self) -> dict[int, int]:
        """Engine hash and warmroute hash of every block in the cache."""
        return self._loop.held()

    async def _serve(self) -> None:
        config = self.config
        hash_seed = secrets.randbits(_HASH_BITS) if config.hash_seed is None else config.hash_seed
        builder = PromptBuilder(
            config.model, config.block_tokens, self._tokenizer.pieces, config.seed, hash_seed
        )
        server = MockServer(
            config, self._tokenizer, builder, self._loop, self._publisher, self.faults
        )
        self._runner = web.AppRunner(
            server.app(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_S,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, config.host, config.port).start()

    def _with_ports(self) -> MockEngineConfig:
        return msgspec.structs.replace(
            self.config,
            port=self._runner.addresses[0][1],
            kv_events_port=_port(self._publisher.live_endpoint),
            kv_replay_port=_port(self._publisher.replay_endpoint),
        )


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])
