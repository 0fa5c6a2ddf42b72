"""Reads what the engine says about its cache from the end of an answer, without parsing it."""

import re
from collections import deque
from typing import Final

from router.headers import Headers, value_of

TAIL_BYTES: Final = 4096

# Only unescaped quotes match, so the same words inside generated text do not.
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,12})')


class AnswerTail:
    """The last chunks of an answer, at least `TAIL_BYTES` of them where there are as many."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) >= TAIL_BYTES:
            self._size -= len(self._chunks.popleft())

    def cached_tokens(self) -> int | None:
        """What the engine reported as found in its cache; None where it reported nothing."""
        found = _CACHED.findall(b"".join(self._chunks)[-TAIL_BYTES:])
        return int(found[-1]) if found else None


def can_report_usage(headers: Headers) -> bool:
    """Whether an answer's body is readable text that may hold usage."""
    kind = (value_of(headers, "content-type") or "").lower()
    readable = value_of(headers, "content-encoding") in (None, "identity")
    return readable and ("json" in kind or "event-stream" in kind)
