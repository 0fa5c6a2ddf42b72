"""Starts NATS, mock engines, a relay for all of them and a router, and waits until they work."""

import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import msgspec
from msgspec import Struct

from bench.stack.nats_server import NatsServer
from bench.stack.process import Process
from bench.stack.scrape import fetch_metrics, metric_sum

_HOST = "127.0.0.1"
_PROBE_TIMEOUT_S = 2.0

BLOCK_TOKENS = 16  # what engines cache by, unless told otherwise


class FleetConfig(Struct, frozen=True, kw_only=True):
    policy: str  # of the router
    engines: int = 8
    profile: str = "llama-70b-h100-tp4"
    capacity_tokens: int = 1_000_000  # KV memory of one engine
    block_tokens: int = BLOCK_TOKENS
    speed: float = 1.0  # engines run that many times as fast as the profile says
    with_nats: bool = True  # without: no relay, and the router is told its engines
    pool: str = "default"
    model: str = "mock-model"
    engine_args: tuple[str, ...] = ()  # appended to each command
    relay_args: tuple[str, ...] = ()
    router_args: tuple[str, ...] = ()
    startup_timeout_s: float = 60.0  # for each process


class EngineAddress(Struct, frozen=True):
    """What a mock engine writes into its ready file."""

    url: str
    kv_events: str
    kv_replay: str


class Engine(Struct, frozen=True):
    process: Process
    address: EngineAddress


class Fleet:
    """Use as an async context manager; everything runs inside the block.

    Args:
        config: what to start.
        run_dir: folder for logs and ready files; made when absent, one for each fleet.

    Raises:
        ProcessError: (on entering) a process died or was not ready in time.
    """

    def __init__(self, config: FleetConfig, run_dir: Path) -> None:
        self.config = config
        self.run_dir = run_dir
        self.nats: NatsServer | None = None
        self.engines: list[Engine] = []
        self.relay: Process | None = None
        self._router: Process | None = None
        self._port = free_port()
        self._metrics_port = free_port()

    @property
    def router_url(self) -> str:
        return f"http://{_HOST}:{self._port}"

    @property
    def router_metrics_url(self) -> str:
        return f"http://{_HOST}:{self._metrics_port}/metrics"

    @property
    def engine_urls(self) -> list[str]:
        return [engine.address.url for engine in self.engines]

    @property
    def router(self) -> Process:
        """The router's process.

        Raises:
            RuntimeError: the fleet is not started.
        """
        if self._router is None:
            raise RuntimeError("the fleet has not been started")
        return self._router

    async def __aenter__(self) -> Self:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Ends every process, router first, so that it sees no engine go."""
        children = [self._router, self.relay, *(engine.process for engine in self.engines)]
        for child in children:
            if child is not None:
                await child.stop()
        if self.nats is not None:
            await self.nats.stop()

    async def restart_router(self) -> None:
        """Stops the router, starts it on the same ports and waits until it sees all engines.

        Raises:
            ProcessError: it did not come up.
        """
        await self.router.stop()
        await self._start_router()

    async def _start(self) -> None:
        if self.config.with_nats:
            self.nats = NatsServer(self.run_dir)
            await self.nats.start()
        await self._start_engines()
        if self.nats is not None:
            args = relay_args(self.config, self.engine_urls, self.nats.url)
            self.relay = Process.python("relay", "indexer.relay", args, self.run_dir)
        await self._start_router()

    async def _start_engines(self) -> None:
        """All at once, as most of a start is importing."""
        files = [self.run_dir / f"engine-{i}.ready" for i in range(self.config.engines)]
        processes: list[Process] = []
        try:
            for file in files:
                file.unlink(missing_ok=True)
                args = engine_args(self.config, file)
                process = Process.python(file.stem, "bench.mock_engine", args, self.run_dir)
                processes.append(process)
            for process, file in zip(processes, files, strict=True):
                address = await _address(process, file, self.config.startup_timeout_s)
                self.engines.append(Engine(process, address))
        except BaseException:
            for process in processes[len(self.engines) :]:
                await process.stop()
            raise

    async def _start_router(self) -> None:
        nats_url = self.nats.url if self.nats else None
        args = router_args(self.config, self._port, self._metrics_port, self.engine_urls, nats_url)
        self._router = Process.python("router", "router", args, self.run_dir)
        timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:

            async def sees_all() -> bool:
                self._check_children()
                return await self._router_sees_all(session)

            await self._router.wait_until(
                sees_all, f"view of {self.config.engines} engines", self.config.startup_timeout_s
            )

    def _check_children(self) -> None:
        """A dead relay would otherwise show as a router that waits in vain."""
        if self.relay is not None and not self.relay.running:
            raise self.relay.error("exited while the router waited for engines")

    async def _router_sees_all(self, session: aiohttp.ClientSession) -> bool:
        if await fetch_metrics(session, f"{self.router_url}/ready") is None:
            return False
        models = await fetch_metrics(session, f"{self.router_url}/v1/models")
        metrics = await fetch_metrics(session, self.router_metrics_url)
        if models is None or metrics is None or f'"{self.config.model}"' not in models:
            return False
        up = metric_sum(metrics, "warmroute_router_instances", state="up")
        return up == self.config.engines


def engine_args(config: FleetConfig, ready_file: Path) -> list[str]:
    """Arguments of one mock engine, on ports of its own choice."""
    return [
        *("--host", _HOST, "--port", "0", "--kv-events-port", "0", "--kv-replay-port", "0"),
        *("--model", config.model, "--profile", config.profile, "--speed", f"{config.speed:g}"),
        *("--capacity-tokens", str(config.capacity_tokens)),
        *("--block-size", str(config.block_tokens), "--ready-file", str(ready_file)),
        *config.engine_args,
    ]


def relay_args(config: FleetConfig, engine_urls: Sequence[str], nats_url: str) -> list[str]:
    """Arguments of one relay that serves all engines."""
    return [
        *("--engine-url", *engine_urls, "--nats-url", nats_url, "--pool", config.pool),
        *("--block-tokens", str(config.block_tokens), *config.relay_args),
    ]


def router_args(
    config: FleetConfig,
    port: int,
    metrics_port: int,
    engine_urls: Sequence[str],
    nats_url: str | None,
) -> list[str]:
    """Arguments of the router: engines come over NATS, or by name where there is none."""
    sources = ("--nats-url", nats_url) if nats_url else ("--worker-urls", *engine_urls)
    return [
        *("--host", _HOST, "--port", str(port)),
        *("--prometheus-host", _HOST, "--prometheus-port", str(metrics_port)),
        *("--policy", config.policy, *sources, "--pool", config.pool, *config.router_args),
    ]


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free just now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


async def _address(process: Process, ready_file: Path, timeout_s: float) -> EngineAddress:
    found: list[EngineAddress] = []

    async def written() -> bool:
        found.extend(_read_address(ready_file))
        return bool(found)

    await process.wait_until(written, "ready file", timeout_s)
    return found[0]


def _read_address(ready_file: Path) -> list[EngineAddress]:
    """The address in a list of one; an empty list while it is absent or half written."""
    try:
        return [msgspec.json.decode(ready_file.read_bytes(), type=EngineAddress)]
    except (OSError, msgspec.DecodeError):
        return []
