"""Looks at an engine's load over HTTP, and remembers whether it is there."""

from typing import Final

import aiohttp
import msgspec

from indexer.relay.load_report import LoadReport, parse_loads, parse_metrics

_FAILURES_UNTIL_DOWN: Final = 3


class UnreachableError(Exception):
    """The engine's HTTP server did not answer."""


async def poll_load(session: aiohttp.ClientSession, url: str, timeout_s: float) -> LoadReport:
    """The engine's load; empty where it answers but does not tell.

    Raises:
        UnreachableError: no connection, no answer within `timeout_s` seconds, or no valid one.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(f"{url}/metrics", timeout=timeout) as response:
            text = await response.text(errors="replace") if response.status == 200 else ""
        report = parse_metrics(text)
        if report.ranks:
            return report
        async with session.get(f"{url}/v1/loads", timeout=timeout) as response:
            if response.status != 200:
                return report
            loads = parse_loads(await response.json(content_type=None))
            return msgspec.structs.replace(loads, started=report.started)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise UnreachableError(repr(error)) from error


class Presence:
    """Whether an engine is there: down after three failures in a row, up after one answer."""

    def __init__(self) -> None:
        self.is_up = True
        self._failures = 0
        self._started: float | None = None

    def answered(self, started: float | None) -> bool:
        """Takes note of an answer; True when the engine may have restarted since the last.

        `started` is the start of its process. With several API processes the answers come from
        one or another, so only a start later than any seen before counts.
        """
        returned = not self.is_up
        self.is_up = True
        self._failures = 0
        if started is None:
            return returned
        newer = self._started is not None and started > self._started
        self._started = max(started, self._started or 0.0)
        return returned or newer

    def failed(self) -> bool:
        """Takes note of a missing answer; True when this one makes the engine count as down."""
        self._failures += 1
        if self.is_up and self._failures >= _FAILURES_UNTIL_DOWN:
            self.is_up = False
            return True
        return False
