"""`bench index`: rates, latencies and memory of the index, beside a plain dictionary's."""

import argparse
import asyncio
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from os import cpu_count
from pathlib import Path
from statistics import median

import msgspec
from tqdm import tqdm

from bench.index.in_process import (
    MatchSetting,
    apply_decoded_mops,
    apply_wire_mops,
    churn_batches,
    dict_apply_mops,
    memory_figures,
)
from bench.index.restart import restart_s

_MEMORY_ONLY = "--memory-only"


class IndexResult(msgspec.Struct):
    """`figures` by name, units in the names; rates are medians over the rounds."""

    date: str
    machine: str
    rounds: int
    figures: dict[str, float]
    ratios: dict[str, float]
    samples: dict[str, list[float]]


def main(argv: Sequence[str]) -> int:
    """Measures the index in interleaved rounds and prints its figures."""
    parser = argparse.ArgumentParser(prog="warmroute bench index", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement")
    parser.add_argument("--out", type=Path, default=Path("out/bench-index"))
    parser.add_argument(_MEMORY_ONLY, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.memory_only:
        print(msgspec.json.encode(memory_figures()).decode())
        return 0
    result = _measure(args.rounds, args.out)
    path = args.out / "result.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    print(_table(result))
    print(f"saved {path}")
    return 0


def _measure(rounds: int, out: Path) -> IndexResult:
    restart_dir = out / "restart"
    restart_dir.mkdir(parents=True, exist_ok=True)
    samples: dict[str, list[float]] = {}
    batches = churn_batches()
    settings = {
        "match_128x8_us": MatchSetting(8, 128),
        "match_128x128_us": MatchSetting(128, 128, holders=8),
        "match_8192x8_us": MatchSetting(8, 8192, prompts=20),
    }
    for _ in tqdm(range(rounds), desc="rounds", disable=None):
        for name, apply in (
            ("apply_decoded_mops", apply_decoded_mops),
            ("dict_apply_mops", dict_apply_mops),
            ("apply_wire_mops", apply_wire_mops),
        ):
            samples.setdefault(name, []).append(apply(batches))
        for name, setting in settings.items():
            samples.setdefault(name, []).append(median(setting.sample_us(20)))
        samples.setdefault("restart_1500k_s", []).append(asyncio.run(restart_s(restart_dir)))
    bytes_per_block, rss_mb = _memory_in_fresh_process()
    samples["bytes_per_block"], samples["rss_1500k_mb"] = [bytes_per_block], [rss_mb]
    figures = {name: median(values) for name, values in samples.items()}
    pairs = zip(samples["apply_decoded_mops"], samples["dict_apply_mops"], strict=True)
    ratios = {"apply_decoded_vs_dict": median(ours / plain for ours, plain in pairs)}
    machine = f"{cpu_count()} x {platform.machine()}, Python {platform.python_version()}"
    date = datetime.now(UTC).date().isoformat()
    return IndexResult(date, machine, rounds, figures, ratios, samples)


def _memory_in_fresh_process() -> tuple[float, float]:
    command = [sys.executable, "-m", "warmroute", "bench", "index", _MEMORY_ONLY]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    return msgspec.json.decode(output, type=tuple[float, float])


def _table(result: IndexResult) -> str:
    lines = [f"{result.date}, {result.machine}, median of {result.rounds} interleaved rounds"]
    for name, value in result.figures.items():
        values = result.samples[name]
        lines.append(f"  {name:<24}{value:>10.2f}   {min(values):.2f} to {max(values):.2f}")
    lines += [f"  {name:<24}{value:>10.2f}" for name, value in result.ratios.items()]
    return "\n".join(lines)
