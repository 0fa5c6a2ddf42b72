"""Runs the engine model in real time: a step, a wait for its duration, its tokens and events."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from bench.engine.model import EngineModel
from bench.engine.requests import EngineRequest, Step, StepResult
from bench.mock_engine.clock import wall_clock_s
from bench.mock_engine.faults import Faults
from bench.mock_engine.kv_events import EventTranslator
from bench.mock_engine.kv_publisher import KvPublisher
from bench.mock_engine.prompts import PreparedPrompt

# After a stall of the process the engine catches up at most so much, then is simply late.
_CATCH_UP_S: Final = 0.25


class Generation:
    """One request in the engine.

    Args:
        request_id: unique among those in the engine.
        prompt: what to compute.
        on_token: called at the end of every step that gave this request a token.
    """

    def __init__(
        self, request_id: str, prompt: PreparedPrompt, on_token: Callable[[], None] | None
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.on_token = on_token
        self.cached_tokens = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class EngineLoop:
    """Drives `model` by the event loop's clock.

    Args:
        model: the engine.
        speed: engine seconds per real second, above 0.
        translator: encodes the events of a step.
        publisher: sends them, before the step's tokens go out.
        faults: `paused` is read before every step; call `wake` after changing it.
    """

    def __init__(
        self,
        model: EngineModel,
        speed: float,
        translator: EventTranslator,
        publisher: KvPublisher,
        faults: Faults,
    ) -> None:
        self.model = model
        self._speed = speed
        self._translator = translator
        self._publisher = publisher
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._generations: dict[str, Generation] = {}
        # Aborted during a step: its events may still tell of their blocks.
        self._aborted: list[str] = []
        self._prompts: dict[str, PreparedPrompt] = {}
        self._count = 0

    def submit(
        self, name: str, prompt: PreparedPrompt, on_token: Callable[[], None] | None = None
    ) -> Generation:
        """Queues a prompt; `Generation.done` is set after its last token.

        Raises:
            ValueError: it can never fit into the KV memory.
        """
        self._count += 1
        generation = Generation(f"{name}-{self._count}", prompt, on_token)
        request = EngineRequest(
            generation.request_id, prompt.prompt_tokens, len(prompt.output), prompt.engine_hashes
        )
        self.model.submit(request, self._loop.time())
        self._generations[generation.request_id] = generation
        self._prompts[generation.request_id] = prompt
        self.wake()
        return generation

    def abort(self, generation: Generation) -> None:
        """Drops a request at once; nothing happens when it is finished."""
        if self.model.abort(generation.request_id):
            del self._generations[generation.request_id]
            self._aborted.append(generation.request_id)

    def wake(self) -> None:
        """Lets an idle or paused engine look again."""
        self._work.set()

    def held(self) -> dict[int, int]:
        """Engine hash and warmroute hash of every block in the cache, announced or not."""
        names = dict(self._translator.own_hashes)
        for prompt in self._prompts.values():
            names.update(zip(prompt.engine_hashes, prompt.own_hashes, strict=True))
        return {name: names[name] for name in self.model.held_hashes()}

    @property
    def announced(self) -> bool:
        """Whether the events sent so far tell all that the cache holds."""
        return self._translator.own_hashes.keys() == self.model.held_hashes()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends the steps.

        Raises:
            Exception: what they failed with before, if they did.
        """
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    @property
    def alive(self) -> bool:
        """Whether the engine still steps; False only after a defect."""
        return not self._task.done()

    async def _run(self) -> None:
        due_s = self._loop.time()
        while True:
            step = self._begin()
            if step is None:
                await self._work.wait()
                due_s = self._loop.time()
                continue
            # Deadlines add up, so timer granularity and the work between steps do not.
            due_s = max(due_s + step.duration_s / self._speed, self._loop.time() - _CATCH_UP_S)
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            self._finish(step)

    def _begin(self) -> Step | None:
        self._work.clear()
        return None if self._faults.paused else self.model.begin_step(self._loop.time())

    def _finish(self, step: Step) -> None:
        result = self.model.finish_step(step, self._loop.time())
        if result.events:
            payload = self._translator.payload(wall_clock_s(), result.events, self._prompts)
            self._publisher.publish(payload)
        self._forget_aborted()
        self._deliver(result)

    def _forget_aborted(self) -> None:
        for request_id in self._aborted:
            del self._prompts[request_id]
        self._aborted.clear()

    def _deliver(self, result: StepResult) -> None:
        generations = self._generations
        for request_id, cached_tokens in result.cached_tokens.items():
            generations[request_id].cached_tokens = cached_tokens
        for request_id in result.emitted:
            on_token = generations[request_id].on_token
            if on_token is not None:
                on_token()
        for request_id in result.finished:
            generations.pop(request_id).done.set_result(None)
            del self._prompts[request_id]
