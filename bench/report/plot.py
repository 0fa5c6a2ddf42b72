"""The picture of a suite: times to first token, and hit ratios beside their bounds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.report.result import RunSummary, SuiteResult

_COLOURS = ("#b3452c", "#2a6f97", "#5b8c3a", "#8e5ea2", "#c08a1e", "#4d4d4d")
_LINES = ("-", "--", ":", "-.")
_SIZE_INCHES = (12.0, 5.2)
_DPI = 130


def draw(
    path: Path, result: SuiteResult, ttfts_s: Mapping[tuple[str, float], Sequence[float]]
) -> None:
    """Writes a PNG with the TTFT distributions and the hit ratios of all runs.

    Args:
        path: file to write.
        result: the suite, at least one run.
        ttfts_s: (policy, load) -> TTFT of every finished measured request, seconds.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    cdf, bars = figure.subplots(1, 2, width_ratios=(1.35, 1.0))
    _draw_cdf(cdf, result.runs, ttfts_s)
    _draw_hits(bars, result.runs)
    figure.suptitle(
        f"{result.trace} ({result.trace_origin}), {result.engines} engines "
        f"{result.engine_profile} at {result.engine_speed:g}x speed, "
        f"{result.capacity_tokens / 1e6:g} M tokens of KV cache each"
    )
    figure.savefig(path)


def _draw_cdf(
    axes: Any, runs: Sequence[RunSummary], ttfts_s: Mapping[tuple[str, float], Sequence[float]]
) -> None:
    policies, loads = _distinct(runs)
    for run in runs:
        times_s = np.sort(np.array(ttfts_s[run.policy, run.load]))
        axes.step(
            times_s,
            np.arange(1, len(times_s) + 1) / max(1, len(times_s)),
            where="post",
            color=_COLOURS[policies.index(run.policy) % len(_COLOURS)],
            linestyle=_LINES[loads.index(run.load) % len(_LINES)],
            label=f"{run.policy}, load {run.load:.2f} (p50 {run.ttft_s.p50:.2f} s)",
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1)
    axes.set_xlabel("time to first token (TTFT), seconds, log scale")
    axes.set_ylabel("share of requests at or below")
    axes.set_title("Time to first token")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(loc="upper left", fontsize="small")


def _draw_hits(axes: Any, runs: Sequence[RunSummary]) -> None:
    policies, _ = _distinct(runs)
    for position, run in enumerate(runs):
        colour = _COLOURS[policies.index(run.policy) % len(_COLOURS)]
        bar = axes.bar(position, run.hit_ratio, width=0.65, color=colour)
        axes.bar_label(bar, fmt="%.3f", padding=2)
        reach = (position - 0.42, position + 0.42)
        axes.hlines(run.pooled_bound, *reach, colors="black", linestyles="-")
        axes.hlines(run.infinite_bound, *reach, colors="black", linestyles=":")
    axes.hlines([], 0, 0, colors="black", linestyles="-", label="bound: pooled cache")
    axes.hlines([], 0, 0, colors="black", linestyles=":", label="bound: infinite cache")
    axes.set_xticks(range(len(runs)), [f"{run.policy}\nload {run.load:.2f}" for run in runs])
    axes.tick_params(axis="x", labelsize="small")
    axes.set_ylim(0, 1.3 * max(run.infinite_bound for run in runs) or 1)
    axes.set_ylabel("prompt tokens served from cache, share")
    axes.set_title("Hit ratio and its bounds")
    axes.legend(loc="upper right", fontsize="small")


def _distinct(runs: Sequence[RunSummary]) -> tuple[list[str], list[float]]:
    """Policies and loads in order of first appearance."""
    policies, loads = (run.policy for run in runs), (run.load for run in runs)
    return list(dict.fromkeys(policies)), list(dict.fromkeys(loads))
