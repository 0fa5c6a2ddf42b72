"""The life of a proxied request: decide, ask an engine, perhaps another one, relay the answer.

No policy is in here: the dispatcher decides, the retry budget permits.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from router.client_side import ClientSide, bad_upload
from router.core.dispatch import Dispatch, Dispatcher
from router.core.errors import NoInstanceError
from router.core.prompt import PromptKey
from router.core.retries import RetryBudget, RetryConfig
from router.core.views import InstanceKey
from router.endpoints import Endpoints
from router.errors import no_instance, timed_out
from router.headers import Headers, with_header
from router.metrics import Metrics
from router.trace import Trace
from router.upstream import Answer, RequestBody, Upstream, UpstreamError
from router.usage import AnswerTail, can_report_usage

# Statuses by which an engine, or something in front of it, says "not now" or "not me".
_RETRIED: Final = frozenset({502, 503, 504})
_INSTANCE_HEADER: Final = "x-warmroute-instance"
_RANK_HEADER: Final = "X-data-parallel-rank"


class Call(msgspec.Struct, frozen=True):
    """A request that is to be answered by some engine."""

    method: str
    target: str  # path and query, as sent
    headers: Headers
    body: RequestBody
    prompt: PromptKey
    model: str | None
    deadline_s: float  # by the event loop's clock


class Attempt:
    """One engine's try at a call. Holds a lease until closed."""

    def __init__(self, dispatch: Dispatch, clock: Callable[[], float]) -> None:
        self.dispatch = dispatch
        self.answer: Answer | None = None
        self._clock = clock

    @property
    def url(self) -> str:
        return self.dispatch.endpoint.url

    @property
    def instance(self) -> str:
        return self.dispatch.endpoint.key[0]

    def first_byte(self) -> None:
        self.dispatch.lease.prefill_done(self._clock())

    def release(self) -> None:
        """The engine has nothing more to do for it. Idempotent."""
        self.dispatch.lease.release(self._clock())

    def close(self) -> None:
        """Cuts what is still open. Idempotent."""
        self.release()
        if self.answer is not None:
            self.answer.close()


class Proxy:
    """Serves calls."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        endpoints: Endpoints,
        upstream: Upstream,
        retries: RetryConfig,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._dispatcher = dispatcher
        self._endpoints = endpoints
        self._upstream = upstream
        self._max_retries = retries.max_retries
        self._budget = RetryBudget(retries, clock())
        self._metrics = metrics
        self._clock = clock

    async def serve(self, call: Call, client: ClientSide, trace: Trace) -> None:
        """Gives the client an engine's answer, whole or visibly broken off.

        Raises:
            GatewayError: no engine gave an answer.
        """
        self._budget.note_request()
        attempts: list[Attempt] = []
        try:
            async with asyncio.timeout_at(call.deadline_s):
                chosen = await self._find_answer(call, attempts, trace)
                await self._relay(chosen, client, trace)
        except TimeoutError:
            trace.outcome = "timeout"
            if client.started:
                client.break_off()
                return
            if attempts:
                self._note_failure(attempts[-1], "timeout")
            raise timed_out(self._clock() - trace.arrived_s) from None
        finally:
            # Also when the client left: the engine must not work on for nobody.
            for attempt in attempts:
                attempt.close()

    # --- which engine -----------------------------------------------------------------------

    async def _find_answer(self, call: Call, attempts: list[Attempt], trace: Trace) -> Attempt:
        refusal: Attempt | None = None  # kept open in case nobody does better
        tried: set[InstanceKey] = set()
        reason = ""
        while not attempts or self._may_retry(call, len(attempts), reason):
            attempt = self._dispatch(call, tried, trace.request_id)
            if attempt is None:
                break
            if attempts:
                self._metrics.retries.labels(reason).inc()
            attempts.append(attempt)
            trace.attempts, trace.instance = len(attempts), attempt.instance
            failure = await self._ask(call, attempt)
            if failure is None:
                return attempt
            reason = failure
            # All ranks of it: they share the process that failed.
            tried.update(e.key for e in self._dispatcher.endpoints() if e.url == attempt.url)
            refusal = attempt if attempt.answer is not None else refusal
        if refusal is None:
            raise no_instance(
                "no engine is available" if not attempts else "no engine could be reached"
            )
        trace.instance = refusal.instance
        return refusal

    def _may_retry(self, call: Call, attempts: int, reason: str) -> bool:
        if attempts > self._max_retries or not call.body.replayable:
            return False
        # A refused connection cost no engine anything, so trying another one needs no budget.
        return reason == "connect" or self._budget.take(self._clock())

    def _dispatch(self, call: Call, tried: set[InstanceKey], request_id: str) -> Attempt | None:
        started_s = self._clock()
        try:
            dispatch = self._dispatcher.dispatch(
                request_id, call.prompt, started_s, call.model, tried
            )
        except NoInstanceError:
            return None
        self._metrics.decision_s.observe(self._clock() - started_s)
        decision = dispatch.decision
        source = "none"
        if decision.expected_cached_tokens > 0:
            source = "recent" if dispatch.used_recent else "index"
        self._metrics.decisions.labels(decision.policy, decision.reason, source).inc()
        self._metrics.prompt_tokens.inc(call.prompt.tokens)
        self._metrics.predicted_cached_tokens.inc(decision.expected_cached_tokens)
        return Attempt(dispatch, self._clock)

    async def _ask(self, call: Call, attempt: Attempt) -> str | None:
        """Asks one engine; returns why another one should be asked, or None."""
        endpoint = attempt.dispatch.endpoint
        headers = call.headers
        if self._endpoints.has_ranks(endpoint.key, endpoint.url):
            headers = with_header(headers, _RANK_HEADER, str(endpoint.key[1]))
        try:
            answer = attempt.answer = await self._upstream.ask(
                call.method, endpoint.url + call.target, headers, call.body
            )
        except UpstreamError as error:
            attempt.release()
            if call.body.client_failed:
                raise bad_upload() from error
            self._note_failure(attempt, error.failure)
            return error.failure
        attempt.first_byte()
        if answer.status not in _RETRIED:
            return None
        attempt.release()
        self._note_failure(attempt, f"status_{answer.status}")
        return f"status_{answer.status}"

    # --- the answer's way back --------------------------------------------------------------

    async def _relay(self, attempt: Attempt, client: ClientSide, trace: Trace) -> None:
        answer = attempt.answer
        if answer is None:
            raise RuntimeError("relaying an attempt without an answer")
        tail = AnswerTail() if can_report_usage(answer.headers) else None
        headers = [*answer.headers, (_INSTANCE_HEADER, attempt.instance)]
        trace.first_byte_s, trace.status = self._clock(), answer.status
        await client.start(answer.status, answer.reason, headers)
        try:
            async for chunk in answer.chunks():
                if tail is not None:
                    tail.add(chunk)
                await client.write(chunk)
        except UpstreamError:
            self._note_failure(attempt, "broken_off")
            trace.outcome = "broken_off"
            client.break_off()
            return
        trace.ended(answer.status)
        self._note_end(attempt, answer.status, tail)

    def _note_end(self, attempt: Attempt, status: int, tail: AnswerTail | None) -> None:
        if status < 500:
            self._endpoints.answered(attempt.url)
        elif status == 500:
            self._note_failure(attempt, "status_500")
        cached_tokens = None if tail is None else tail.cached_tokens()
        if cached_tokens is not None:
            self._metrics.actual_cached_tokens.inc(cached_tokens)

    def _note_failure(self, attempt: Attempt, reason: str) -> None:
        self._metrics.instance_failures.labels(attempt.instance, reason).inc()
        self._endpoints.failed(attempt.url, self._clock())
