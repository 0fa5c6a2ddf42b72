"""Shaping a trace: undoing its time bins, cutting a slice, changing pace and output lengths."""

import random
from collections.abc import Sequence
from itertools import groupby
from typing import Literal, get_args

import msgspec

from bench.traces.record import TraceError, TraceRequest

Smoothing = Literal["as-recorded", "spread"]
SMOOTHINGS: tuple[Smoothing, ...] = get_args(Smoothing)

BIN_S = 3.0


def smooth(requests: Sequence[TraceRequest], smoothing: Smoothing, seed: int) -> list[TraceRequest]:
    """Requests in the same order with the chosen arrival times.

    Published traces have timestamps rounded to about 3 s, so that a replay as recorded sends bursts
    of up to 28 requests at once. "spread" puts those of one bin at uniform times inside it, drawn
    from `seed`; the order inside the bin stays, as later turns may follow earlier ones there.
    """
    if smoothing == "as-recorded":
        return list(requests)
    rng = random.Random(seed)
    spread: list[TraceRequest] = []
    for bin_index, members in groupby(requests, key=lambda r: round(r.arrival_s / BIN_S)):
        group = list(members)
        times = sorted(BIN_S * (bin_index + rng.random()) for _ in group)
        spread += map(_at, group, times)
    return spread


def cut(requests: Sequence[TraceRequest], start: int, count: int) -> list[TraceRequest]:
    """`count` requests from index `start` on, the first arriving at 0 s.

    Raises:
        TraceError: the trace has fewer requests than that.
    """
    chosen = requests[start : start + count]
    if start < 0 or count < 1 or len(chosen) < count:
        raise TraceError(
            f"cannot take {count} requests from number {start} on: the trace has {len(requests)}"
        )
    origin_s = chosen[0].arrival_s
    return [_at(request, request.arrival_s - origin_s) for request in chosen]


def pace(requests: Sequence[TraceRequest], speedup: float) -> list[TraceRequest]:
    """Requests arriving `speedup` times (> 0; below 1 slows down) as fast as recorded."""
    return [_at(request, request.arrival_s / speedup) for request in requests]


def cap_outputs(requests: Sequence[TraceRequest], max_tokens: int | None) -> list[TraceRequest]:
    """Requests that generate at most `max_tokens` (>= 1) tokens each; None changes nothing."""
    if max_tokens is None:
        return list(requests)
    return [
        msgspec.structs.replace(request, output_tokens=min(request.output_tokens, max_tokens))
        for request in requests
    ]


def span_s(requests: Sequence[TraceRequest]) -> float:
    """Seconds the requests stand for: n of them span n mean gaps, not the n - 1 between them."""
    between_s = requests[-1].arrival_s - requests[0].arrival_s
    return between_s * len(requests) / max(1, len(requests) - 1)


def _at(request: TraceRequest, arrival_s: float) -> TraceRequest:
    return msgspec.structs.replace(request, arrival_s=arrival_s)
