"""Shows how a replay goes while it runs: a bar on a terminal, a line now and then elsewhere."""

import sys
from statistics import median
from time import monotonic
from typing import Protocol, TextIO

from bench.live.outcome import Outcome

_BAR_INTERVAL_S = 0.5
_LINE_INTERVAL_S = 15.0


class Tally:
    """Running figures of a replay."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.sent = self.finished = self.failed = 0
        self._prompt_tokens = self._cached_tokens = 0
        self._ttfts_s: list[float] = []

    def add(self, outcome: Outcome) -> None:
        self.finished += 1
        self.failed += outcome.error is not None
        self._prompt_tokens += outcome.prompt_tokens
        self._cached_tokens += outcome.cached_tokens
        if outcome.ttft_s is not None:
            self._ttfts_s.append(outcome.ttft_s)

    def text(self) -> str:
        hits = self._cached_tokens / self._prompt_tokens if self._prompt_tokens else 0.0
        ttft_s = median(self._ttfts_s) if self._ttfts_s else 0.0
        return (
            f"sent {self.sent}, finished {self.finished}, failed {self.failed}, "
            f"hit ratio {hits:.3f}, TTFT p50 {ttft_s:.2f} s"
        )


class Progress(Protocol):
    def sent(self) -> None:
        """A request went out."""

    def finished(self, outcome: Outcome) -> None:
        """A request ended, well or not."""

    def close(self) -> None:
        """The replay is over."""


class BarProgress:
    def __init__(self, label: str, total: int) -> None:
        from tqdm import tqdm  # noqa: PLC0415 - only needed on a terminal

        self._tally = Tally(total)
        self._bar = tqdm(total=total, desc=label, unit="req", mininterval=_BAR_INTERVAL_S)
        self._shown_s = monotonic()

    def sent(self) -> None:
        self._tally.sent += 1

    def finished(self, outcome: Outcome) -> None:
        self._tally.add(outcome)
        if monotonic() - self._shown_s >= _BAR_INTERVAL_S:
            self._shown_s = monotonic()
            self._bar.set_postfix_str(self._tally.text(), refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.set_postfix_str(self._tally.text())
        self._bar.close()


class LineProgress:
    def __init__(self, label: str, total: int, stream: TextIO) -> None:
        self._label = label
        self._tally = Tally(total)
        self._stream = stream
        self._shown_s = monotonic()

    def sent(self) -> None:
        self._tally.sent += 1

    def finished(self, outcome: Outcome) -> None:
        self._tally.add(outcome)
        if monotonic() - self._shown_s >= _LINE_INTERVAL_S:
            self._show()

    def close(self) -> None:
        self._show()

    def _show(self) -> None:
        self._shown_s = monotonic()
        line = f"{self._label}: {self._tally.text()} of {self._tally.total}"
        print(line, file=self._stream, flush=True)


def progress_for(label: str, total: int) -> Progress:
    """The kind that suits standard error."""
    if sys.stderr.isatty():
        return BarProgress(label, total)
    return LineProgress(label, total, sys.stderr)
