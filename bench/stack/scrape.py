"""Reads what processes tell of themselves: Prometheus metrics and CPU time."""

import os
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


async def fetch_metrics(session: aiohttp.ClientSession, url: str) -> str | None:
    """The text at `url`; None when there is no 200 answer to be had."""
    try:
        async with session.get(url) as response:
            return await response.text() if response.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None


def metric_sum(text: str, name: str, **labels: str) -> float:
    """Sum of the samples called `name` (counters with `_total`) that carry all `labels`; else 0."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def process_cpu_s(pid: int) -> float | None:
    """CPU seconds, user and system, the process has used; None where /proc does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the program's name may hold anything
    utime, stime = int(fields[11]), int(fields[12])
    return (utime + stime) / os.sysconf("SC_CLK_TCK")
