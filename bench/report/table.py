"""Runs side by side as a text table, each figure beside its ratio to the first run of its load."""

from collections.abc import Callable, Sequence
from itertools import groupby

from bench.report.result import RunSummary

_Figure = Callable[[RunSummary], float | None]

_ROWS: tuple[tuple[str, str, bool, _Figure], ...] = (  # label, format, with ratio, figure
    ("requests measured", ".0f", False, lambda run: run.requests),
    ("failed", ".0f", False, lambda run: run.failed),
    ("TTFT mean, s", ".3f", True, lambda run: run.ttft_s.mean),
    ("TTFT p50, s", ".3f", True, lambda run: run.ttft_s.p50),
    ("TTFT p90, s", ".3f", True, lambda run: run.ttft_s.p90),
    ("TTFT p99, s", ".3f", True, lambda run: run.ttft_s.p99),
    ("TPOT mean, ms", ".1f", True, lambda run: 1000 * run.tpot_s.mean),
    ("TPOT p99, ms", ".1f", True, lambda run: 1000 * run.tpot_s.p99),
    ("end to end mean, s", ".3f", True, lambda run: run.e2e_s.mean),
    ("end to end p99, s", ".3f", True, lambda run: run.e2e_s.p99),
    ("hit ratio", ".3f", True, lambda run: run.hit_ratio),
    ("  bound, pooled cache", ".3f", False, lambda run: run.pooled_bound),
    ("  bound, infinite cache", ".3f", False, lambda run: run.infinite_bound),
    ("  share of pooled bound", ".3f", False, lambda run: run.captured_share_pooled),
    ("imbalance, uncached tokens", ".2f", False, lambda run: run.imbalance),
    ("imbalance, requests", ".2f", False, lambda run: run.imbalance_requests),
    ("client lag p99, ms", ".1f", False, lambda run: 1000 * run.generator_lag_s.p99),
    ("router CPU, s", ".2f", False, lambda run: run.router_cpu_s),
)
_LABEL_WIDTH = 2 + max(len(row[0]) for row in _ROWS)
_CELL_WIDTH = 20


def runs_table(runs: Sequence[RunSummary]) -> str:
    """One block of columns for each load, in the order of `runs`; empty without runs."""
    blocks = [_block(list(group)) for _, group in groupby(runs, key=lambda run: run.load)]
    return "\n\n".join(blocks)


def _block(runs: Sequence[RunSummary]) -> str:
    title = f"load {runs[0].load:.2f}, x{runs[0].speedup:.2f}".ljust(_LABEL_WIDTH)
    lines = [title + "".join(run.policy.rjust(_CELL_WIDTH) for run in runs)]
    for label, spec, with_ratio, figure in _ROWS:
        values = [figure(run) for run in runs]
        first = values[0] if with_ratio else None
        cells = [_cell(value, spec, first, index) for index, value in enumerate(values)]
        lines.append((label.ljust(_LABEL_WIDTH) + "".join(cells)).rstrip())
    return "\n".join(lines)


def _cell(value: float | None, spec: str, first: float | None, index: int) -> str:
    if value is None:
        return "-".rjust(_CELL_WIDTH)
    text = format(value, spec)
    if index and first:
        text += f" ({value / first:.2f}x)"
    return text.rjust(_CELL_WIDTH)
