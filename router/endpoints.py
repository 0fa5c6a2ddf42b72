"""The instances that a router may address, from configuration, from its API and from the bus.

One entry per URL. Pure bookkeeping: probes and heartbeats are told to it, and it tells the
dispatcher what it may choose from.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from indexer.core.events import Heartbeat
from indexer.core.streams import Stream, StreamKey
from router.config import ProbeConfig, normal_url
from router.core.dispatch import Dispatcher
from router.core.health import HealthConfig, InstanceHealth
from router.core.views import Endpoint, InstanceKey


class LoadReport(msgspec.Struct, frozen=True):
    """What an engine said about its queue."""

    running: int
    waiting: int
    at_s: float


class Instance:
    """One engine URL and all that is known of it."""

    def __init__(self, url: str, name: str, health: HealthConfig) -> None:
        self.url = url
        self.name = name
        self.configured = False  # by flag or API: stays until removed
        self.announced = False  # by a heartbeat that is still there
        self.ranks: tuple[int, ...] = (0,)
        self.announced_models: tuple[str, ...] = ()
        self.listed_models: tuple[str, ...] = ()  # by its own /v1/models
        self.cards: list[dict[str, Any]] | None = None  # its own /v1/models; None until known
        self.answers_probes: bool | None = None  # None until probed
        self.failed_probes = 0
        self.circuit = InstanceHealth(health)  # by how its answers end
        self.loads: dict[int, LoadReport] = {}

    @property
    def state(self) -> str:
        return {None: "unknown", True: "up", False: "down"}[self.answers_probes]

    @property
    def models(self) -> tuple[str, ...]:
        """All names it serves, the one that its hashes are made with first; () until known."""
        return tuple(dict.fromkeys(self.announced_models + self.listed_models))

    @property
    def keys(self) -> list[InstanceKey]:
        return [(self.name, rank) for rank in self.ranks]


class Endpoints:
    """All instances of this router."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        probes: ProbeConfig,
        health: HealthConfig,
        on_added: Callable[[Instance], None] = lambda _: None,
        on_removed: Callable[[Instance], None] = lambda _: None,
    ) -> None:
        self._dispatcher = dispatcher
        self._probes = probes
        self._health = health
        self.on_added = on_added
        self.on_removed = on_removed
        self._by_url: dict[str, Instance] = {}
        self._banned: set[str] = set()  # removed by hand: announcements do not bring them back

    # --- who is there -----------------------------------------------------------------------

    def instances(self) -> list[Instance]:
        return list(self._by_url.values())

    def find(self, name_or_url: str) -> Instance | None:
        """By URL, name or `host:port`."""
        for instance in self._by_url.values():
            if name_or_url.rstrip("/") in (instance.url, instance.name, default_name(instance.url)):
                return instance
        return None

    def add(self, url: str) -> Instance:
        """An instance that the operator named.

        Raises:
            ValueError: not an engine URL.
        """
        url = normal_url(url)
        self._banned.discard(url)
        instance = self._by_url.get(url) or self._open(url, default_name(url))
        instance.configured = True
        return instance

    def remove(self, instance: Instance) -> None:
        """The operator does not want it any more, whoever announces it."""
        if instance.announced:
            self._banned.add(instance.url)
        self._close(instance)

    def follow(
        self,
        heartbeats: Iterable[Heartbeat],
        streams: Mapping[StreamKey, Stream],
        bus_connected: bool,
    ) -> None:
        """Takes over what the bus announces.

        An instance whose heartbeat has gone stays as long as its engine answers, and while the
        bus is away: then silence means nothing.
        """
        announced = _latest_by_url(heartbeats, streams)
        names = {heartbeat.instance for heartbeat in announced.values()}
        for url, heartbeat in announced.items():
            if url not in self._banned:
                self._announce(url, heartbeat, streams)
        for instance in self.instances():
            if instance.url in announced:
                continue
            moved = instance.announced and instance.name in names
            instance.announced = False
            gone = bus_connected and instance.answers_probes is False
            if not instance.configured and (gone or moved):
                self._close(instance)

    def _announce(
        self, url: str, heartbeat: Heartbeat, streams: Mapping[StreamKey, Stream]
    ) -> None:
        instance = self._by_url.get(url) or self._open(url, heartbeat.instance)
        ranks = tuple(sorted({state.rank for state in heartbeat.streams})) or (0,)
        if (instance.name, instance.ranks) != (heartbeat.instance, ranks):
            self._withdraw(instance)
            instance.name, instance.ranks, instance.loads = heartbeat.instance, ranks, {}
        instance.announced = True
        instance.announced_models = (heartbeat.model, *heartbeat.models)
        for state in heartbeat.streams:
            stream = streams.get((heartbeat.instance, state.rank))
            if stream is None or state.running is None or state.waiting is None:
                continue
            at_s = stream.heartbeat_s - (state.load_age_s or 0.0)
            instance.loads[state.rank] = LoadReport(state.running, state.waiting, at_s)

    def _open(self, url: str, name: str) -> Instance:
        instance = self._by_url[url] = Instance(url, name, self._health)
        self.on_added(instance)
        return instance

    def _close(self, instance: Instance) -> None:
        if self._by_url.pop(instance.url, None) is not None:
            self._withdraw(instance)
            self.on_removed(instance)

    def _withdraw(self, instance: Instance) -> None:
        for key in instance.keys:
            self._dispatcher.remove_endpoint(key)

    # --- how they are -----------------------------------------------------------------------

    def probed(self, instance: Instance, answered: bool) -> None:
        """The result of one health probe."""
        if answered:
            instance.failed_probes = 0
            instance.answers_probes = True
            return
        instance.failed_probes += 1
        if instance.failed_probes >= self._probes.failures_to_down:
            instance.answers_probes = False

    def learned(self, instance: Instance, cards: list[dict[str, Any]]) -> None:
        """What the engine's own /v1/models lists."""
        instance.cards = cards
        names = (card.get("id") for card in cards)
        instance.listed_models = tuple(name for name in names if isinstance(name, str))

    def answered(self, url: str) -> None:
        """A request was answered there in good order."""
        instance = self._by_url.get(url)
        if instance is not None:
            instance.circuit.succeeded()

    def failed(self, url: str, now_s: float) -> None:
        """A request was refused, broken off or left without an answer there."""
        instance = self._by_url.get(url)
        if instance is not None:
            was_up = instance.circuit.is_up(now_s)
            instance.circuit.failed(now_s)
            if was_up and not instance.circuit.is_up(now_s):
                self.publish(now_s)

    def publish(self, now_s: float) -> None:
        """Brings the dispatcher's view up to date."""
        candidates = [i for i in self._by_url.values() if i.answers_probes is not False]
        # With every circuit open it is the requests that are bad, or nothing can get worse.
        all_open = not any(i.circuit.is_up(now_s) for i in candidates)
        current = {endpoint.key: endpoint for endpoint in self._dispatcher.endpoints()}
        for instance in self._by_url.values():
            healthy = instance.answers_probes is not False and (
                all_open or instance.circuit.is_up(now_s)
            )
            for endpoint in self._views(instance, healthy, now_s):
                if current.get(endpoint.key) != endpoint:
                    self._dispatcher.set_endpoint(endpoint)

    def _views(self, instance: Instance, healthy: bool, now_s: float) -> Iterable[Endpoint]:
        for key in instance.keys:
            load = instance.loads.get(key[1])
            if load is None or now_s - load.at_s > self._probes.load_fresh_s:
                yield Endpoint(key, instance.url, instance.models, healthy)
            else:
                yield Endpoint(
                    key,
                    instance.url,
                    instance.models,
                    healthy,
                    load.running,
                    load.waiting,
                    load.at_s,
                )

    # --- what is asked ----------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether some engine is known to be up."""
        return any(instance.answers_probes for instance in self._by_url.values())

    def count(self, state: str) -> int:
        return sum(instance.state == state for instance in self._by_url.values())

    def fresh_loads(self, now_s: float) -> int:
        """Instances with a recent load report."""
        fresh_s = self._probes.load_fresh_s
        return sum(
            any(now_s - load.at_s <= fresh_s for load in instance.loads.values())
            for instance in self._by_url.values()
        )

    def known_models(self) -> list[str] | None:
        """All models served, also by instances that are down; None when any may be served."""
        instances = self._by_url.values()
        if any(i.answers_probes is not False and not i.models for i in instances):
            return None
        return sorted({model for i in instances for model in i.models}) or None

    def default_model(self) -> str:
        """The model meant by a request that names none: the only one, or ""."""
        names = {instance.models[0] for instance in self._by_url.values() if instance.models}
        return names.pop() if len(names) == 1 else ""

    def has_ranks(self, key: InstanceKey, url: str) -> bool:
        """Whether a request must say which rank of the instance it is for."""
        instance = self._by_url.get(url)
        return key[1] > 0 or (instance is not None and len(instance.ranks) > 1)


def default_name(url: str) -> str:
    """The name of an instance that nobody named."""
    parts = urlsplit(url)
    return parts.netloc + parts.path


def _latest_by_url(
    heartbeats: Iterable[Heartbeat], streams: Mapping[StreamKey, Stream]
) -> dict[str, Heartbeat]:
    """The heartbeat heard last for each URL: a restarted engine may have a new name."""
    latest: dict[str, tuple[float, Heartbeat]] = {}
    for heartbeat in heartbeats:
        heard_s = max(
            (
                stream.heartbeat_s
                for state in heartbeat.streams
                if (stream := streams.get((heartbeat.instance, state.rank))) is not None
            ),
            default=0.0,
        )
        try:
            url = normal_url(heartbeat.url)
        except ValueError:
            continue  # an announcement that cannot be addressed
        if url not in latest or heard_s > latest[url][0]:
            latest[url] = (heard_s, heartbeat)
    return {url: heartbeat for url, (_, heartbeat) in latest.items()}
