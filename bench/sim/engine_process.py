"""An engine model on simulated time: steps follow one another, events leave at each step's end."""

from collections.abc import Callable

from bench.des import Simulation
from bench.engine.block_cache import KvEvent
from bench.engine.model import EngineModel
from bench.engine.requests import EngineRequest, Step, StepResult

OnStep = Callable[[StepResult], None]
OnEvents = Callable[[list[KvEvent]], None]


class EngineProcess:
    """Drives one `EngineModel` in a `Simulation`."""

    def __init__(
        self, simulation: Simulation, model: EngineModel, on_step: OnStep, on_events: OnEvents
    ) -> None:
        self.model = model
        self._simulation = simulation
        self._on_step = on_step
        self._on_events = on_events

    def submit(self, request: EngineRequest) -> None:
        self.model.submit(request, self._simulation.now_s)
        if not self.model.in_step:
            self._begin()

    def _begin(self) -> None:
        step = self.model.begin_step(self._simulation.now_s)
        if step is not None:
            self._simulation.after(step.duration_s, lambda: self._finish(step))

    def _finish(self, step: Step) -> None:
        result = self.model.finish_step(step, self._simulation.now_s)
        if result.events:
            self._on_events(result.events)
        self._on_step(result)
        if not self.model.in_step:
            self._begin()
