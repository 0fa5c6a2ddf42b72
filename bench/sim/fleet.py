"""A fleet of modelled engines behind the router's real decision code, on simulated time."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from bench.des import Simulation
from bench.engine.model import EngineModel
from bench.engine.profiles import TimingProfile
from bench.engine.requests import EngineRequest, StepResult
from bench.sim.engine_process import EngineProcess
from bench.sim.publisher import SimulatedRelay
from bench.traces.record import TraceRequest
from indexer.core.events import Batch, Heartbeat, StreamState
from indexer.core.ingest import Ingest
from indexer.core.streams import IngestConfig
from router.core.dispatch import DispatchConfig, Dispatcher
from router.core.leases import Lease
from router.core.policies import Policy
from router.core.prompt import PromptKey
from router.core.views import Endpoint, InstanceKey, PrefixMatch

# Silence means nothing here: simulated heartbeats are sent once, and no stream is ever lost.
_PATIENT = IngestConfig(heartbeat_s=1e9, drop_after_s=1e12, retire_after_s=1e12)


class FleetConfig(msgspec.Struct, frozen=True):
    """What is simulated."""

    engines: int
    profile: TimingProfile
    capacity_tokens: int  # KV memory of each engine
    block_tokens: int
    event_lag_s: float = 0.002  # end of an engine step to the router's index
    dispatch: DispatchConfig = DispatchConfig()


class Outcome(msgspec.Struct):
    """One simulated request."""

    instance: str
    arrival_s: float
    prompt_tokens: int
    expected_cached_tokens: float
    cached_tokens: int = 0
    first_token_s: float | None = None
    finished_s: float | None = None


class IndexOverlap:
    """The ingested index as an overlap source."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    def match(self, key: PromptKey, now_s: float) -> Mapping[InstanceKey, PrefixMatch]:
        return {
            (m.instance, m.rank): PrefixMatch(
                m.depth_blocks[0] * key.block_tokens, m.confidence, m.staleness_s
            )
            for m in self._ingest.match(key.hashes, key.block_tokens, now_s)
        }


class SimulatedFleet:
    """Runs a trace through a policy. Use once."""

    def __init__(self, config: FleetConfig, policy: Policy) -> None:
        self._config = config
        self._simulation = Simulation()
        self._ingest = Ingest(_PATIENT)
        self.dispatcher = Dispatcher(config.dispatch, policy, IndexOverlap(self._ingest))
        self._engines = {
            name: self._engine(name) for name in (f"engine-{i}" for i in range(config.engines))
        }
        self._leases: dict[str, Lease] = {}
        self.outcomes: dict[str, Outcome] = {}

    def run(self, requests: Sequence[TraceRequest]) -> list[Outcome]:
        """Simulates all requests to their end; outcomes come in the order of the requests."""
        for number, request in enumerate(requests):
            self._simulation.at(request.arrival_s, partial(self._arrive, number, request))
        self._simulation.run()
        return [self.outcomes[str(number)] for number in range(len(requests))]

    def _engine(self, name: str) -> EngineProcess:
        config = self._config
        relay = SimulatedRelay(
            self._simulation,
            name,
            config.event_lag_s,
            lambda batch: self._effects_are_none(self._ingest.on_batch(batch, self._now_s)),
        )
        hello = Heartbeat(
            name, "sim", 0.0, [StreamState(0, 1, -1, 0, 0)], name, "m", config.block_tokens
        )
        self._effects_are_none(self._ingest.on_heartbeat(hello, 0.0))
        self.dispatcher.set_endpoint(Endpoint((name, 0), name))
        model = EngineModel(config.profile, config.capacity_tokens, config.block_tokens)
        return EngineProcess(self._simulation, model, self._on_step, relay.publish)

    @property
    def _now_s(self) -> float:
        return self._simulation.now_s

    def _on_batch(self, batch: Batch) -> None:
        self._effects_are_none(self._ingest.on_batch(batch, self._now_s))

    def _effects_are_none(self, effects: Sequence[object]) -> None:
        if effects:
            raise RuntimeError(f"a lossless simulated feed asked for {effects}")

    def _arrive(self, number: int, request: TraceRequest) -> None:
        name = str(number)
        hashes = full_block_hashes(request, self._config.block_tokens)
        prompt = PromptKey("tokens", request.input_tokens, hashes, self._config.block_tokens)
        dispatch = self.dispatcher.dispatch(name, prompt, self._now_s)
        self._leases[name] = dispatch.lease
        decision = dispatch.decision
        self.outcomes[name] = Outcome(
            decision.key[0], self._now_s, request.input_tokens, decision.expected_cached_tokens
        )
        self._engines[decision.key[0]].submit(
            EngineRequest(name, request.input_tokens, request.output_tokens, hashes)
        )

    def _on_step(self, result: StepResult) -> None:
        for name, cached_tokens in result.cached_tokens.items():
            self.outcomes[name].cached_tokens = cached_tokens
        for name in result.first:
            self.outcomes[name].first_token_s = self._now_s
            self._leases[name].prefill_done(self._now_s)
        for name in result.finished:
            self.outcomes[name].finished_s = self._now_s
            self._leases.pop(name).release(self._now_s)


def full_block_hashes(request: TraceRequest, block_tokens: int) -> list[int]:
    """Names of the prompt's full blocks at a finer granularity than the trace's own.

    A trace block k of 512 tokens becomes n = 512 / `block_tokens` blocks named k * n + i + 1.

    Raises:
        ValueError: the trace's block is not a multiple of `block_tokens`.
    """
    parts, rest = divmod(request.block_tokens, block_tokens)
    if rest:
        raise ValueError(f"{request.block_tokens} is not a multiple of {block_tokens}")
    names = [block * parts + part + 1 for block in request.block_ids for part in range(parts)]
    return names[: request.input_tokens // block_tokens]
