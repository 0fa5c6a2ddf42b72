"""Strict reader of Mooncake's trace format: one JSON object a line, blocks of 512 tokens.

The format has no session ids. Its prompts all begin with one of a few common blocks, so the first
two blocks tell conversations apart, and the second id (the first in a prompt of one block) is taken
as the session.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from bench.traces.record import TraceError, TraceRequest

BLOCK_TOKENS = 512
_MS_PER_S = 1000.0

_NonNegative = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: _NonNegative  # milliseconds
    input_length: _Positive
    output_length: _Positive
    hash_ids: list[_NonNegative]


def read_mooncake(path: Path) -> list[TraceRequest]:
    """All requests of the file, in its order.

    Raises:
        TraceError: the file cannot be read or is empty, a line is not such an object, its number of
            ids does not fit its length, or its timestamp lies before the one above it.
    """
    requests = list(_requests(path))
    if not requests:
        raise TraceError(f"{path}: no requests in it")
    return requests


def _requests(path: Path) -> Iterator[TraceRequest]:
    decoder = msgspec.json.Decoder(_Line)
    arrival_s = 0.0
    for number, raw in enumerate(_lines(path), start=1):
        try:
            request = _request(decoder.decode(raw))
        except (msgspec.DecodeError, ValueError) as error:
            raise TraceError(f"{path}:{number}: {error}") from error
        if request.arrival_s < arrival_s:
            raise TraceError(f"{path}:{number}: timestamp lies before the line above")
        arrival_s = request.arrival_s
        yield request


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error


def _request(line: _Line) -> TraceRequest:
    expected = -(-line.input_length // BLOCK_TOKENS)
    if len(line.hash_ids) != expected:
        raise ValueError(
            f"{len(line.hash_ids)} hash_ids, but {line.input_length} tokens are {expected} blocks"
        )
    return TraceRequest(
        arrival_s=line.timestamp / _MS_PER_S,
        input_tokens=line.input_length,
        output_tokens=line.output_length,
        block_ids=tuple(line.hash_ids),
        block_tokens=BLOCK_TOKENS,
        session=line.hash_ids[min(1, expected - 1)],
    )
