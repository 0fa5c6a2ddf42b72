"""What goes into the engine model, what comes out of it, and what it knows of a live request."""

from collections.abc import Sequence

import msgspec

from bench.engine.block_cache import KvEvent


class EngineRequest(msgspec.Struct, frozen=True):
    """One prompt and how many tokens will be generated for it.

    `hashes` names the full blocks of the prompt and, optionally, of the generated tokens behind
    it, from position 0. Blocks without a hash are computed but never shared.
    """

    request_id: str
    prompt_tokens: int  # at least 1
    output_tokens: int  # at least 1
    hashes: Sequence[int]  # chained, at most one for each full block of prompt and output


class LiveRequest(msgspec.Struct, eq=False):
    """A submitted request while it waits or runs; only the engine model touches it."""

    request: EngineRequest
    known_tokens: int  # prompt and emitted tokens: all computed before the next one comes out
    computed_tokens: int = 0  # tokens whose KV is there, cached ones included
    emitted_tokens: int = 0
    held_blocks: int = 0
    shared_blocks: int = 0  # the leading ones of these, held by hash; the others are private
    cached_tokens: int | None = None  # prefix hit when first scheduled


class Scheduled(msgspec.Struct, frozen=True, eq=False):
    """Share of one request in a step."""

    live: LiveRequest
    tokens: int  # new tokens computed, at least 1
    decodes: bool  # continues the output by one token; otherwise a prefill chunk


class Step(msgspec.Struct, frozen=True, eq=False):
    """One scheduled engine step."""

    started_s: float
    duration_s: float
    scheduled: tuple[Scheduled, ...]
    prefill_tokens: int
    decode_tokens: int


class StepResult(msgspec.Struct, frozen=True):
    """What one step gave. Requests aborted during the step are left out."""

    emitted: tuple[str, ...]  # requests that got one token each, in scheduling order
    first: tuple[str, ...]  # those of them for which it was the first
    finished: tuple[str, ...]  # those for which it was the last
    cached_tokens: dict[str, int]  # prefix hit of each request first scheduled in this step
    events: list[KvEvent]  # cache changes since the step before, in order


class EngineStats(msgspec.Struct, frozen=True):
    """State now and totals since the start."""

    running: int
    waiting: int
    kv_usage: float  # share of blocks held by requests, 0 to 1
    arrived: int
    finished: int
    aborted: int
    preempted: int  # times, not requests
    prompt_tokens: int  # of requests scheduled so far
    cached_tokens: int  # of these, found in the prefix cache when first scheduled
    prefill_tokens: int  # computed by prefill, recomputation after preemption included
    generated_tokens: int
