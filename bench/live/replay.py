"""The open-loop client: sends each request at its time, whatever became of the ones before.

Nothing is unbounded: requests in flight, the whole replay and the wait for its last answers have
limits, and a request that hits one is counted as failed with the reason.
"""

import asyncio
import io
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic

import aiohttp
from msgspec import Struct

from bench.live.outcome import Outcome
from bench.live.progress import Progress
from bench.live.stream import StreamError, StreamMeter, Usage
from bench.traces.record import TraceRequest
from bench.traces.tokens import PromptTokens, completion_body

INSTANCE_HEADER = "x-warmroute-instance"
_ERROR_CHARS = 200


class ReplayConfig(Struct, frozen=True, kw_only=True):
    base_url: str  # of an OpenAI-compatible server, without /v1
    model: str
    warmup_requests: int = 0  # leading requests that only warm the caches
    namespace: int = 0  # of the generated tokens, >= 0
    max_in_flight: int = 2000
    request_timeout_s: float = 300.0
    deadline_s: float = 3600.0  # for the whole replay
    drain_timeout_s: float = 120.0  # for the answers after the last request is sent


MeasuredHook = Callable[[], Coroutine[None, None, None]]


async def replay(
    config: ReplayConfig,
    requests: Sequence[TraceRequest],
    progress: Progress,
    on_measured: MeasuredHook | None = None,
) -> list[Outcome]:
    """Sends `requests` (at least one) at their arrival times and returns an outcome for each.

    Args:
        config: where to, and the limits.
        requests: in order of arrival, seconds from now.
        progress: told of every request sent and ended; closed at the end.
        on_measured: awaited beside the replay when the first request after the warm-up is due.
    """
    timeout = aiohttp.ClientTimeout(total=config.request_timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        run = _Replay(config, requests, progress, session)
        try:
            return await run.run(on_measured)
        finally:
            progress.close()


class _Replay:
    def __init__(
        self,
        config: ReplayConfig,
        requests: Sequence[TraceRequest],
        progress: Progress,
        session: aiohttp.ClientSession,
    ) -> None:
        self._config = config
        self._requests = requests
        self._progress = progress
        self._session = session
        self._tokens = PromptTokens(config.namespace, requests[0].block_tokens)
        self._outcomes: dict[int, Outcome] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._start_s = monotonic()

    async def run(self, on_measured: MeasuredHook | None) -> list[Outcome]:
        try:
            async with asyncio.TaskGroup() as group:
                await self._send_all(group, on_measured)
                await self._drain()
        finally:
            for task in self._tasks:
                task.cancel()
        return [self._outcomes.get(i) or self._unsent(i) for i in range(len(self._requests))]

    async def _send_all(self, group: asyncio.TaskGroup, on_measured: MeasuredHook | None) -> None:
        for index in range(len(self._requests)):
            body = self._body(index)  # before the wait, so that it does not delay the sending
            if not await self._wait_until_due(index):
                return
            if index == self._config.warmup_requests and on_measured is not None:
                group.create_task(on_measured())
            self._send(index, body)

    def _body(self, index: int) -> bytes:
        request = self._requests[index]
        prompt_json = self._tokens.json_array(request)
        return completion_body(
            prompt_json, model=self._config.model, max_tokens=request.output_tokens
        )

    async def _wait_until_due(self, index: int) -> bool:
        """Sleeps until the request is due; False when that is past the deadline."""
        due_s = self._requests[index].arrival_s
        elapsed_s = monotonic() - self._start_s
        if max(due_s, elapsed_s) > self._config.deadline_s:
            return False
        await asyncio.sleep(max(0.0, due_s - elapsed_s))
        return True

    def _send(self, index: int, body: bytes) -> None:
        self._progress.sent()
        if len(self._tasks) >= self._config.max_in_flight:
            self._finish(self._failed(index, "the client's limit of requests in flight"))
            return
        task = asyncio.create_task(self._exchange(index, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self) -> None:
        left_s = self._start_s + self._config.deadline_s - monotonic()
        timeout_s = max(0.0, min(self._config.drain_timeout_s, left_s))
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _exchange(self, index: int, body: bytes) -> None:
        lag_s = monotonic() - self._start_s - self._requests[index].arrival_s
        try:
            outcome = await self._measured(index, body, lag_s)
        except asyncio.CancelledError:
            self._finish(self._failed(index, "not finished when the replay ended", lag_s))
            raise
        except TimeoutError:
            outcome = self._failed(index, "request timeout", lag_s)
        except (aiohttp.ClientError, OSError, StreamError) as error:
            outcome = self._failed(index, f"{type(error).__name__}: {error}", lag_s)
        self._finish(outcome)

    async def _measured(self, index: int, body: bytes, lag_s: float) -> Outcome:
        meter = StreamMeter()
        async with self._session.post(
            f"{self._config.base_url}/v1/completions",
            data=io.BytesIO(body),
            headers={"Content-Type": "application/json", "X-Request-Id": f"replay-{index}"},
        ) as response:
            if response.status != 200:
                text = (await response.text())[:_ERROR_CHARS]
                return self._failed(index, f"HTTP {response.status}: {text}", lag_s, response)
            async for chunk in response.content.iter_any():
                meter.feed(chunk, monotonic())
            return self._succeeded(index, meter, lag_s, response)

    def _succeeded(
        self, index: int, meter: StreamMeter, lag_s: float, response: aiohttp.ClientResponse
    ) -> Outcome:
        usage = meter.usage()
        scheduled_s = self._requests[index].arrival_s
        if meter.first_content_s is None or meter.last_chunk_s is None:
            return self._failed(index, "stream without content", lag_s, response)
        return Outcome(
            index=index,
            warmup=index < self._config.warmup_requests,
            scheduled_s=scheduled_s,
            lag_s=lag_s,
            ttft_s=meter.first_content_s - self._start_s - scheduled_s,
            tpot_s=_tpot_s(meter.last_chunk_s - meter.first_content_s, usage),
            e2e_s=meter.last_chunk_s - self._start_s - scheduled_s,
            status=response.status,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            instance=response.headers.get(INSTANCE_HEADER),
        )

    def _failed(
        self,
        index: int,
        error: str,
        lag_s: float = 0.0,
        response: aiohttp.ClientResponse | None = None,
    ) -> Outcome:
        return Outcome(
            index=index,
            warmup=index < self._config.warmup_requests,
            scheduled_s=self._requests[index].arrival_s,
            lag_s=lag_s,
            status=response.status if response else None,
            error=error,
            instance=response.headers.get(INSTANCE_HEADER) if response else None,
        )

    def _unsent(self, index: int) -> Outcome:
        return self._failed(index, "not sent before the deadline")

    def _finish(self, outcome: Outcome) -> None:
        self._outcomes[outcome.index] = outcome
        self._progress.finished(outcome)


def _tpot_s(streamed_s: float, usage: Usage) -> float | None:
    if usage.output_tokens < 2:
        return None
    return streamed_s / (usage.output_tokens - 1)
