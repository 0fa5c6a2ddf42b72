"""How much of a trace's prompts a prefix cache can hold at best.

Prompts enter the cache in order of arrival and at once, so no engine that takes time can do better:
the infinite cache bounds every fleet, and one pooled cache with the fleet's whole capacity bounds
every way of routing to it (up to the small gains of evicting with foresight). Only prompts count:
generated text is in no later prompt of these traces under the ids that it would be cached by.
"""

from collections import OrderedDict
from collections.abc import Sequence

from bench.traces.record import TraceRequest


class PrefixLru:
    """A cache of prefix blocks that evicts the least recently used block without cached child.

    A request touches its deepest block first and its root last. The oldest block in the order of
    touching therefore never has a cached child, and plain LRU over that order is leaf-first LRU.

    Args:
        capacity_tokens: tokens it holds; None for no limit.
        unit_tokens: allocation unit; a block takes its tokens rounded up to a multiple of it.
    """

    def __init__(self, capacity_tokens: int | None, unit_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._unit_tokens = unit_tokens
        self._used_tokens = 0
        self._cost_of: OrderedDict[int, int] = OrderedDict()

    def match(self, request: TraceRequest) -> int:
        """Leading tokens of the prompt that are cached."""
        blocks = 0
        for block_id in request.block_ids:
            if block_id not in self._cost_of:
                break
            blocks += 1
        return min(blocks * request.block_tokens, request.input_tokens)

    def insert(self, request: TraceRequest) -> None:
        """Touches or stores every block of the prompt, then evicts down to the capacity."""
        for index in range(len(request.block_ids) - 1, -1, -1):
            block_id = request.block_ids[index]
            if block_id in self._cost_of:
                self._cost_of.move_to_end(block_id)
                continue
            units = -(-request.tokens_of_block(index) // self._unit_tokens)
            self._cost_of[block_id] = units * self._unit_tokens
            self._used_tokens += units * self._unit_tokens
        self._evict()

    def _evict(self) -> None:
        if self._capacity_tokens is None:
            return
        while self._used_tokens > self._capacity_tokens:
            _, cost_tokens = self._cost_of.popitem(last=False)
            self._used_tokens -= cost_tokens


def hit_tokens(
    requests: Sequence[TraceRequest],
    capacity_tokens: int | None,
    *,
    unit_tokens: int,
    caches: int = 1,
) -> list[int]:
    """Cached tokens each prompt finds, with `caches` (>= 1) equal caches used in rotation.

    `capacity_tokens` is that of one cache, None for infinite; `unit_tokens` as in `PrefixLru`.
    """
    lrus = [PrefixLru(capacity_tokens, unit_tokens) for _ in range(caches)]
    hits: list[int] = []
    for index, request in enumerate(requests):
        lru = lrus[index % caches]
        hits.append(lru.match(request))
        lru.insert(request)
    return hits


def hit_ratio(requests: Sequence[TraceRequest], hits: Sequence[int], skip: int = 0) -> float:
    """Share of prompt tokens found cached (0..1), the first `skip` requests left out."""
    prompt_tokens = sum(request.input_tokens for request in requests[skip:])
    return sum(hits[skip:]) / prompt_tokens if prompt_tokens else 0.0
