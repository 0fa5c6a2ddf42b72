"""Child processes that leave a log, are known to be ready or say why not, and never outlive us."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Self

_POLL_S = 0.02
_LOG_TAIL_LINES = 20
_PR_SET_PDEATHSIG = 1


class ProcessError(RuntimeError):
    """A child died or was not ready in time; the message ends with the tail of its log."""


class Process:
    """One child process, started by construction. Its output goes to `<run_dir>/<name>.log`.

    Args:
        name: unique within `run_dir`.
        argv: program and arguments.
        run_dir: existing folder.
    """

    def __init__(self, name: str, argv: Sequence[str], run_dir: Path) -> None:
        self.name = name
        self.argv = list(argv)
        self.log_path = run_dir / f"{name}.log"
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent(),  # noqa: PLW1509 - one prctl, no locks taken
            )

    @classmethod
    def python(cls, name: str, module: str, args: Sequence[str], run_dir: Path) -> Self:
        """A process that runs `python -m module` with this interpreter."""
        return cls(name, [sys.executable, "-m", module, *args], run_dir)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    async def wait_until(
        self, ready: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 30.0
    ) -> None:
        """Waits until `ready()` holds.

        Raises:
            ProcessError: the process ended, or `timeout_s` passed before; `what` names the wait.
        """
        end_s = monotonic() + timeout_s
        while not await ready():
            if not self.running:
                raise self.error(f"exited with status {self._child.returncode} before {what}")
            if monotonic() > end_s:
                raise self.error(f"no {what} within {timeout_s:g} s")
            await asyncio.sleep(_POLL_S)

    def kill(self) -> None:
        """Ends it at once, as a crash would (SIGKILL), and reaps it."""
        self._child.kill()
        self._child.wait()

    def freeze(self) -> None:
        """Stops it in its tracks, sockets open (SIGSTOP). On Linux it stands when this returns."""
        self._child.send_signal(signal.SIGSTOP)
        if sys.platform == "linux":
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Lets a frozen process go on (SIGCONT)."""
        self._child.send_signal(signal.SIGCONT)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Asks it to end (SIGTERM), and kills it after `grace_s`. Harmless when it is gone."""
        if not self.running:
            return
        self._child.terminate()
        self.thaw()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._child.wait, grace_s)
        self.kill()

    def error(self, problem: str) -> ProcessError:
        """A `ProcessError` of this process with the tail of its log."""
        text = self.log_path.read_text(errors="replace")
        tail = "\n".join(f"  | {line}" for line in text.splitlines()[-_LOG_TAIL_LINES:])
        return ProcessError(f"{self.name}: {problem}; {self.log_path} ends with\n{tail}")


def _die_with_parent() -> Callable[[], None] | None:
    """What a child runs before its program, so that it gets SIGTERM when this process dies.

    Linux only; elsewhere a killed parent leaves its children behind.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork: the child must not take the loader's lock
    parent = os.getpid()

    def arm() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # died between fork and prctl
            os.kill(os.getpid(), signal.SIGTERM)

    return arm
