"""Continuous batching in virtual time: who computes what in each step, and how long it takes.

The schedule follows vLLM: requests already running come first (one token for each that decodes,
the next chunk for one in prefill), then the waiting ones in order of arrival while the token
budget and the KV memory last. When a running request cannot get a block, the youngest running
request loses all of its blocks and starts over at the head of the queue, with the prefix cache
to help. Blocks that will be full after a step are published when it is scheduled.
"""

from collections import deque

from bench.engine.block_cache import BlockCache, KvEvent
from bench.engine.profiles import TimingProfile, prefill_pairs
from bench.engine.requests import (
    EngineRequest,
    EngineStats,
    LiveRequest,
    Scheduled,
    Step,
    StepResult,
)


class EngineModel:
    """One engine: queue, batch and KV blocks. Time is an argument and may not run backwards.

    Drive it with `begin_step` and, `Step.duration_s` later, `finish_step`; `submit` and `abort`
    may come at any moment.

    Args:
        profile: step durations.
        capacity_tokens: KV memory in tokens; rounded down to whole blocks, at least one.
        block_tokens: tokens of one block, at least 1.
        max_batched_tokens: new tokens computed in one step, at least `max_seqs`.
        max_seqs: requests in the running batch, at least 1.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(
        self,
        profile: TimingProfile,
        capacity_tokens: int,
        block_tokens: int,
        max_batched_tokens: int = 8192,
        max_seqs: int = 256,
    ) -> None:
        if block_tokens < 1:
            raise ValueError(f"block_tokens must be at least 1, got {block_tokens}")
        if not 1 <= max_seqs <= max_batched_tokens:
            raise ValueError(
                f"max_seqs must be from 1 to max_batched_tokens ({max_batched_tokens}), "
                f"got {max_seqs}"
            )
        self.profile = profile
        self.block_tokens = block_tokens
        self.cache = BlockCache(capacity_tokens // block_tokens)
        self._max_batched_tokens = max_batched_tokens
        self._max_seqs = max_seqs
        self._live: dict[str, LiveRequest] = {}
        self._waiting: deque[LiveRequest] = deque()
        self._running: list[LiveRequest] = []
        self._step: Step | None = None
        self._now_s = float("-inf")
        self._hits: dict[str, int] = {}
        self._arrived = self._finished = self._aborted = self._preempted = 0
        self._prompt_tokens = self._cached_tokens = 0
        self._prefill_tokens = self._generated_tokens = 0

    @property
    def in_step(self) -> bool:
        """Whether a step has begun and not finished."""
        return self._step is not None

    def submit(self, request: EngineRequest, now_s: float) -> None:
        """Queues a request.

        Raises:
            ValueError: it has no prompt or output, has too many hashes, can never fit into the KV
                memory, its id is in use, or time ran backwards.
        """
        self._advance(now_s)
        problem = self._problem(request)
        if problem:
            raise ValueError(f"request {request.request_id}: {problem}")
        live = LiveRequest(request, known_tokens=request.prompt_tokens)
        self._live[request.request_id] = live
        self._waiting.append(live)
        self._arrived += 1

    def abort(self, request_id: str) -> bool:
        """Drops a request and frees its blocks at once; False if it is not (or no longer) here."""
        live = self._live.pop(request_id, None)
        if live is None:
            return False
        self._free(live)
        self._hits.pop(request_id, None)
        (self._running if live in self._running else self._waiting).remove(live)
        self._aborted += 1
        return True

    def begin_step(self, now_s: float) -> Step | None:
        """Schedules the next step, or returns None when there is nothing to do.

        Raises:
            RuntimeError: the step before has not been finished.
            ValueError: time ran backwards.
        """
        if self._step is not None:
            raise RuntimeError("begin_step before finish_step of the running step")
        self._advance(now_s)
        if not self._live:
            return None
        self._step = self._timed(self._schedule())
        return self._step

    def finish_step(self, step: Step, now_s: float) -> StepResult:
        """Applies the outcome of `step`, which `begin_step` returned last.

        Raises:
            RuntimeError: `step` is not the step in progress.
            ValueError: time ran backwards.
        """
        if step is not self._step:
            raise RuntimeError("finish_step of a step that is not in progress")
        self._advance(now_s)
        self._step = None
        emitted, first, finished = self._apply(step)
        self._retire(finished)
        hits, self._hits = self._hits, {}
        events: list[KvEvent] = self.cache.drain_events()
        return StepResult(tuple(emitted), tuple(first), tuple(finished), hits, events)

    def reset_prefix_cache(self) -> bool:
        """Drops all cached blocks; False, changing nothing, while requests hold blocks.

        The event comes with the next step, as in vLLM.
        """
        return self.cache.clear()

    def held_hashes(self) -> set[int]:
        """Hashes of all blocks in the prefix cache, those of a step in progress included."""
        return self.cache.held_hashes()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=self.cache.used_blocks / self.cache.capacity_blocks,
            arrived=self._arrived,
            finished=self._finished,
            aborted=self._aborted,
            preempted=self._preempted,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            prefill_tokens=self._prefill_tokens,
            generated_tokens=self._generated_tokens,
        )

    def _problem(self, request: EngineRequest) -> str:
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            return "at least one prompt token and one output token are needed"
        if request.request_id in self._live:
            return "the id is in use"
        total_tokens = request.prompt_tokens + request.output_tokens
        if len(request.hashes) > total_tokens // self.block_tokens:
            return "more hashes than full blocks"
        # The KV of the last token is never computed.
        if self._blocks(total_tokens - 1) > self.cache.capacity_blocks:
            room_tokens = self.cache.capacity_blocks * self.block_tokens
            return f"{total_tokens} tokens do not fit into the KV memory of {room_tokens} tokens"
        return ""

    def _advance(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"time ran backwards from {self._now_s} to {now_s}")
        self._now_s = now_s

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _schedule(self) -> list[Scheduled]:
        preempted_before = self._preempted
        scheduled = self._schedule_running()
        if self._preempted == preempted_before:
            budget = self._max_batched_tokens - sum(share.tokens for share in scheduled)
            self._schedule_waiting(budget, scheduled)
        return scheduled

    def _schedule_running(self) -> list[Scheduled]:
        scheduled: list[Scheduled] = []
        budget = self._max_batched_tokens
        position = 0
        while position < len(self._running) and budget:
            live = self._running[position]
            tokens = min(live.known_tokens - live.computed_tokens, budget)
            fills_block = live.computed_tokens + tokens >= live.held_blocks * self.block_tokens
            if fills_block and not self._make_room(live, tokens):
                break
            scheduled.append(self._share(live, tokens))
            budget -= tokens
            position += 1
        return scheduled

    def _make_room(self, live: LiveRequest, tokens: int) -> bool:
        """Gets blocks for `tokens` more, at the cost of younger requests; False: it fell itself."""
        needed = self._blocks(live.computed_tokens + tokens) - live.held_blocks
        while needed and not self.cache.allocate(needed):
            victim = self._running[-1]
            self._preempt()
            if victim is live:
                return False
        live.held_blocks += needed
        self._publish(live, tokens)
        return True

    def _preempt(self) -> None:
        victim = self._running.pop()
        self._free(victim)
        self._waiting.appendleft(victim)
        self._preempted += 1

    def _schedule_waiting(self, budget: int, scheduled: list[Scheduled]) -> None:
        while self._waiting and budget and len(self._running) < self._max_seqs:
            live = self._waiting[0]
            tokens = self._admit(live, budget)
            if not tokens:
                return
            self._running.append(self._waiting.popleft())
            scheduled.append(self._share(live, tokens))
            budget -= tokens

    def _admit(self, live: LiveRequest, budget: int) -> int:
        """Gives a waiting request its cached prefix and blocks for its first chunk; 0: no room."""
        # The last known token is always computed: its output is the next token.
        limit = (live.known_tokens - 1) // self.block_tokens
        shared = self.cache.cached_prefix(live.request.hashes, limit)
        hit_tokens = shared * self.block_tokens
        tokens = min(live.known_tokens - hit_tokens, budget)
        private = self._blocks(hit_tokens + tokens) - shared
        if not self.cache.acquire(live.request.hashes, shared, private):
            return 0
        live.computed_tokens = hit_tokens
        live.shared_blocks, live.held_blocks = shared, shared + private
        if live.cached_tokens is None:
            self._count_hit(live, hit_tokens)
        self._publish(live, tokens)
        return tokens

    def _count_hit(self, live: LiveRequest, hit_tokens: int) -> None:
        live.cached_tokens = hit_tokens
        self._hits[live.request.request_id] = hit_tokens
        self._prompt_tokens += live.request.prompt_tokens
        self._cached_tokens += hit_tokens

    def _publish(self, live: LiveRequest, tokens: int) -> None:
        """Names the blocks that are full once `tokens` more are computed."""
        hashes = live.request.hashes
        full = min((live.computed_tokens + tokens) // self.block_tokens, len(hashes))
        if full > live.shared_blocks:
            self.cache.publish(hashes, live.shared_blocks, full, live.request.request_id)
            live.shared_blocks = full

    def _share(self, live: LiveRequest, tokens: int) -> Scheduled:
        decodes = live.emitted_tokens > 0 and live.computed_tokens == live.known_tokens - 1
        return Scheduled(live, tokens, decodes)

    def _timed(self, scheduled: list[Scheduled]) -> Step:
        pairs = 0.0
        prefill_tokens = decode_tokens = context_tokens = 0
        for share in scheduled:
            if share.decodes:
                decode_tokens += 1
                context_tokens += share.live.known_tokens
            else:
                prefill_tokens += share.tokens
                pairs += prefill_pairs(share.tokens, share.live.computed_tokens)
        self._prefill_tokens += prefill_tokens
        duration_s = self.profile.step_s(prefill_tokens + decode_tokens, pairs, context_tokens)
        return Step(self._now_s, duration_s, tuple(scheduled), prefill_tokens, decode_tokens)

    def _apply(self, step: Step) -> tuple[list[str], list[str], list[str]]:
        emitted: list[str] = []
        first: list[str] = []
        finished: list[str] = []
        for share in step.scheduled:
            live = share.live
            request_id = live.request.request_id
            if self._live.get(request_id) is not live:
                continue  # aborted during the step
            live.computed_tokens += share.tokens
            if live.computed_tokens < live.known_tokens:
                continue
            live.emitted_tokens += 1
            live.known_tokens += 1
            emitted.append(request_id)
            if live.emitted_tokens == 1:
                first.append(request_id)
            if live.emitted_tokens == live.request.output_tokens:
                finished.append(request_id)
        self._generated_tokens += len(emitted)
        return emitted, first, finished

    def _retire(self, finished: list[str]) -> None:
        if not finished:
            return
        for request_id in finished:
            self._free(self._live.pop(request_id))
        self._running = [live for live in self._running if live.request.request_id in self._live]
        self._finished += len(finished)

    def _free(self, live: LiveRequest) -> None:
        private = live.held_blocks - live.shared_blocks
        self.cache.release(live.request.hashes, live.shared_blocks, private)
        live.held_blocks = live.shared_blocks = live.computed_tokens = 0
