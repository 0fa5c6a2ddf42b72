"""Follows one engine: finds it, follows its ranks, polls its load, announces it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
import msgspec
import zmq.asyncio

from indexer.core import events, subjects
from indexer.core.events import Heartbeat, StreamState, WireError
from indexer.core.held import HeldBlocks
from indexer.core.outgoing import EpochSource, OutgoingStream
from indexer.relay.config import EngineTarget, RelayConfig
from indexer.relay.discovery import discover
from indexer.relay.endpoints import DiscoveryError, EngineInfo, RankEndpoints
from indexer.relay.load_poll import Presence, UnreachableError, poll_load
from indexer.relay.load_report import LoadReport, RankLoad
from indexer.relay.metrics import RelayMetrics
from indexer.relay.nats_bus import NatsBus
from indexer.relay.rank_follower import RankFollower

_log = logging.getLogger(__name__)

_DISCOVERY_PAUSES_S: Final = (0.25, 5.0)
_POLL_TIMEOUT_S: Final = 2.0


class Surroundings(msgspec.Struct, frozen=True):
    """What all followers of a process share."""

    config: RelayConfig
    bus: NatsBus
    metrics: RelayMetrics
    session: aiohttp.ClientSession
    context: zmq.asyncio.Context
    epochs: EpochSource
    wall_clock: Callable[[], float]  # seconds
    monotonic: Callable[[], float]  # seconds


class EngineFollower:
    """One engine on the bus."""

    def __init__(self, target: EngineTarget, around: Surroundings) -> None:
        self.target = target
        self._around = around
        self._info: EngineInfo | None = None
        self._ranks: list[RankFollower] = []
        self._presence = Presence()
        self._report = LoadReport()
        self._report_at_s = 0.0  # monotonic
        pool, instance = around.config.pool, target.instance
        self._heartbeat_subject = subjects.heartbeat(pool, instance)
        around.bus.on_connect(self._beat_if_up)
        around.bus.respond(subjects.snapshot(pool, instance), self._answer_snapshot)

    @property
    def status(self) -> str:
        """`searching`, `up` or `down`."""
        if self._info is None:
            return "searching"
        return "up" if self._presence.is_up else "down"

    async def run(self) -> None:
        """Follows until cancelled."""
        info = await self._discover()
        while True:
            info = await self._follow(info)

    def say_goodbye(self) -> None:
        """The last heartbeat of an orderly stop."""
        self._beat(leaving=True)

    async def _discover(self) -> EngineInfo:
        pause_s, longest_s = _DISCOVERY_PAUSES_S
        last_error = ""
        while True:
            try:
                info = await discover(self._around.session, self.target)
            except DiscoveryError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    _log.warning("%s: %s; trying again", self.target.instance, error)
            else:
                _log.info("%s: %s serves %s", self.target.instance, info.engine, info.models)
                return info
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _follow(self, info: EngineInfo) -> EngineInfo:
        """Follows the engine as `info` describes it; returns when that has changed."""
        self._ranks = [self._rank_follower(info, endpoints) for endpoints in info.ranks]
        self._info = info
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(rank.run()) for rank in self._ranks]
            running.append(tasks.create_task(self._beat_regularly()))
            changed = await self._poll_until_changed(info)
            for task in running:
                task.cancel()
        return changed

    def _rank_follower(self, info: EngineInfo, endpoints: RankEndpoints) -> RankFollower:
        around, config, instance = self._around, self._around.config, self.target.instance
        held = HeldBlocks(config.block_tokens, info.models[0], secret=config.secret)
        epoch = around.epochs.next(int(around.wall_clock() * 1e6))
        stream = OutgoingStream(instance, endpoints.rank, held, epoch)
        subject = subjects.events(config.pool, instance, endpoints.rank)
        follower = RankFollower(
            endpoints,
            stream,
            around.epochs,
            lambda data: around.bus.post(subject, data),
            around.metrics,
            around.context,
            around.wall_clock,
        )
        follower.on_new_epoch = self._beat_if_up
        return follower

    async def _poll_until_changed(self, info: EngineInfo) -> EngineInfo:
        config, session = self._around.config, self._around.session
        while True:
            try:
                report = await poll_load(session, self.target.url, _POLL_TIMEOUT_S)
            except UnreachableError as error:
                self._note_failure(error)
            else:
                if self._note_answer(report):
                    now = await self._discover()
                    if now != info:
                        return now
                    for rank in self._ranks:
                        rank.suspect_restart()
                    self._beat_if_up()
            await asyncio.sleep(config.poll_s)

    def _note_failure(self, error: UnreachableError) -> None:
        instance = self.target.instance
        self._around.metrics.poll_failures.labels(instance).inc()
        if self._presence.failed():
            self._around.metrics.engine_up.labels(instance).set(0)
            _log.warning("%s is down: %s", instance, error)

    def _note_answer(self, report: LoadReport) -> bool:
        """True when the engine may have restarted since its last answer."""
        self._around.metrics.engine_up.labels(self.target.instance).set(1)
        self._report = report
        self._report_at_s = self._around.monotonic()
        may_have_restarted = self._presence.answered(report.started)
        if may_have_restarted:
            _log.info("%s is back or another process", self.target.instance)
        return may_have_restarted

    async def _beat_regularly(self) -> None:
        while True:
            self._beat_if_up()
            await asyncio.sleep(self._around.config.heartbeat_s)

    def _beat_if_up(self) -> None:
        if self._presence.is_up:
            self._beat()

    def _beat(self, *, leaving: bool = False) -> None:
        info, config = self._info, self._around.config
        if info is None:
            return
        heartbeat = Heartbeat(
            instance=self.target.instance,
            pool=config.pool,
            sent_at=self._around.wall_clock(),
            streams=self._stream_states(),
            url=self.target.url,
            model=info.models[0],
            block_tokens=config.block_tokens,
            role=info.role,
            engine=info.engine,
            capacity_tokens=self._report.capacity_tokens,
            models=list(info.models),
            leaving=leaving,
        )
        if self._around.bus.post(self._heartbeat_subject, events.encode(heartbeat)):
            self._around.metrics.heartbeats.labels(self.target.instance).inc()

    def _stream_states(self) -> list[StreamState]:
        loads = self._report.ranks
        age_s = self._around.monotonic() - self._report_at_s if loads else None
        return [
            follower.state(loads.get(follower.stream.rank, RankLoad()), age_s)
            for follower in self._ranks
        ]

    async def _answer_snapshot(
        self, data: bytes, reply: Callable[[bytes], Awaitable[bool]]
    ) -> None:
        outcomes = self._around.metrics.snapshots
        try:
            wanted = events.decode_snapshot_request(data).rank
        except WireError:
            outcomes.labels("bad_request").inc()
            return
        follower = next((r for r in self._ranks if r.stream.rank == wanted), None)
        if follower is None:
            outcomes.labels("unknown_rank").inc()
            return
        for chunk in follower.stream.snapshot():
            if not await reply(events.encode(chunk)):
                outcomes.labels("dropped").inc()
                return
            await asyncio.sleep(0)  # a large snapshot must not hold up events
        outcomes.labels("sent").inc()
