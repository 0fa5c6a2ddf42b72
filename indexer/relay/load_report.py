"""Reads an engine's load out of its metrics page or its load endpoint. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

_STARTED: Final = "process_start_time_seconds"
_CACHE_INFO: Final = "vllm:cache_config_info"
_CAPACITY: Final = "sglang:max_total_num_tokens"
# Metric -> field of RankLoad. The first name of a field that an engine has is the current one.
_FIELD_OF: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:gpu_cache_usage_perc": "kv_usage",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "kv_usage",
}
_WANTED: Final = (_STARTED, _CACHE_INFO, _CAPACITY, *_FIELD_OF)
_SAMPLE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+([^\s]+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class RankLoad(msgspec.Struct, frozen=True):
    """Load of one rank; None where the engine does not tell."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None  # 0 to 1


class LoadReport(msgspec.Struct, frozen=True):
    """What one look at an engine told."""

    ranks: dict[int, RankLoad] = {}
    started: float | None = None  # start of the engine's process, Unix seconds
    capacity_tokens: int | None = None  # of one rank's KV cache


def parse_metrics(text: str) -> LoadReport:
    """From a Prometheus page; lines that are not understood are passed over."""
    fields: dict[int, dict[str, float]] = {}
    started: float | None = None
    capacity: int | None = None
    for name, labels, value in _samples(text):
        if name == _STARTED:
            started = value
        elif name == _CACHE_INFO:
            capacity = _capacity(labels) or capacity
        elif name == _CAPACITY:
            capacity = int(value) or capacity
        else:
            # Several processes of one rank (tensor or pipeline parallel) report the same load.
            known = fields.setdefault(_rank(labels), {})
            field = _FIELD_OF[name]
            known[field] = max(known.get(field, 0.0), value)
    return LoadReport({rank: _load(known) for rank, known in fields.items()}, started, capacity)


def _samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    samples = []
    for line in text.splitlines():
        if not line.startswith(_WANTED) or (match := _SAMPLE.match(line)) is None:
            continue
        name, labels, value = match.groups()
        if name in _WANTED and (number := _number(value)) is not None:
            samples.append((name, dict(_LABEL.findall(labels or "")), number))
    return samples


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _rank(labels: Mapping[str, str]) -> int:
    label = labels.get("dp_rank") or labels.get("engine") or "0"
    return int(label) if label.isdecimal() else 0


def _capacity(labels: Mapping[str, str]) -> int | None:
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else None


def parse_loads(answer: Any) -> LoadReport:
    """From SGLang's `/v1/loads`: a list of ranks, bare or under `loads`."""
    entries = answer.get("loads") if isinstance(answer, Mapping) else answer
    ranks: dict[int, RankLoad] = {}
    capacity: int | None = None
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if not isinstance(entry, Mapping):
            continue
        numbers = {k: float(v) for k, v in entry.items() if isinstance(v, int | float) and v >= 0}
        known = {
            field: numbers[name]
            for field, name in (
                ("running", "num_running_reqs"),
                ("waiting", "num_waiting_reqs"),
                ("kv_usage", "token_usage"),
            )
            if name in numbers
        }
        ranks[int(numbers.get("dp_rank", index))] = _load(known)
        capacity = int(numbers.get("max_total_num_tokens", 0)) or capacity
    return LoadReport(ranks, None, capacity)


def _load(known: Mapping[str, float]) -> RankLoad:
    running, waiting = known.get("running"), known.get("waiting")
    usage = known.get("kv_usage")
    return RankLoad(
        None if running is None else int(running),
        None if waiting is None else int(waiting),
        None if usage is None else min(usage, 1.0),
    )
