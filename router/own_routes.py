"""What the router answers itself: health, metrics, the models of all engines, the worker API."""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from router.client_side import ClientSide
from router.core.dispatch import Dispatcher
from router.core.errors import RequestError
from router.endpoints import Endpoints, Instance
from router.headers import Headers
from router.prober import Prober

OPEN_PATHS: Final = frozenset({"/health", "/live", "/ready"})  # no key needed
_JSON: Final[Headers] = [("Content-Type", "application/json")]
_MAX_WORKER_BODY_BYTES: Final = 65_536

Handler = Callable[[ClientSide], Awaitable[None]]


class _NewWorker(msgspec.Struct):
    url: str


class OwnRoutes:
    """Handlers by method and path."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        endpoints: Endpoints,
        prober: Prober,
        registry: CollectorRegistry,
        clock: Callable[[], float],
    ) -> None:
        self._dispatcher = dispatcher
        self._endpoints = endpoints
        self._prober = prober
        self._registry = registry
        self._clock = clock
        self.draining = False
        self._handlers: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._alive,
            ("GET", "/live"): self._alive,
            ("GET", "/ready"): self._ready,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/workers"): self._list_workers,
            ("POST", "/workers"): self._add_worker,
            ("DELETE", "/workers"): self._remove_worker,
        }

    def find(self, method: str, path: str) -> Handler | None:
        """The handler of a request, or None when it is the engines' business."""
        method = "GET" if method == "HEAD" else method
        if method == "DELETE" and path.startswith("/workers/"):
            return self._remove_worker
        return self._handlers.get((method, path))

    def metrics_application(self) -> web.Application:
        """The second listener: metrics and nothing else, without a key."""

        async def handle(_request: web.Request) -> web.Response:
            body = generate_latest(self._registry)
            return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

        app = web.Application()
        app.router.add_get("/metrics", handle)
        return app

    async def models(self) -> bytes | None:
        """All engines' models as one list; None when no engine has told its own."""
        await self._prober.learn_models()
        cards: dict[str, dict[str, Any]] = {}
        for instance in sorted(self._endpoints.instances(), key=lambda each: each.name):
            if instance.answers_probes is not False:
                for card in instance.cards or ():
                    cards.setdefault(str(card.get("id")), card)
        if not cards:
            return None
        return msgspec.json.encode({"object": "list", "data": list(cards.values())})

    async def _alive(self, client: ClientSide) -> None:
        await client.send(200, b'{"status":"ok"}', _JSON)

    async def _ready(self, client: ClientSide) -> None:
        status = "ready"
        if self.draining:
            status = "draining"
        elif not self._endpoints.is_ready():
            status = "no instance is up"
        code = 200 if status == "ready" else 503
        await client.send(code, msgspec.json.encode({"status": status}), _JSON)

    async def _metrics(self, client: ClientSide) -> None:
        body = generate_latest(self._registry)
        await client.send(200, body, [("Content-Type", CONTENT_TYPE_LATEST)])

    # --- workers ----------------------------------------------------------------------------

    async def _list_workers(self, client: ClientSide) -> None:
        rows = [
            row
            for instance in sorted(self._endpoints.instances(), key=lambda each: each.name)
            for row in self._rows(instance)
        ]
        await client.send(200, msgspec.json.encode(rows), _JSON)

    def _rows(self, instance: Instance) -> list[dict[str, Any]]:
        now_s, rate = self._clock(), self._dispatcher.config.prefill_tokens_per_s
        loads = {key: self._dispatcher.leases.load(key) for key in instance.keys}
        return [
            {
                "url": instance.url,
                "instance": instance.name,
                "rank": key[1],
                "model": instance.models[0] if instance.models else None,
                "models": instance.models,
                "state": instance.state,
                "in_flight": load.in_flight,
                "pending_prefill_tokens": round(load.pending_tokens(now_s, rate)),
            }
            for key, load in loads.items()
        ]

    async def _add_worker(self, client: ClientSide) -> None:
        body = await client.read_body(_MAX_WORKER_BODY_BYTES)
        try:
            instance = self._endpoints.add(msgspec.json.decode(body, type=_NewWorker).url)
        except (msgspec.DecodeError, ValueError) as error:
            raise RequestError(f"worker: {error}", code="bad_worker") from error
        self._endpoints.publish(self._clock())
        await client.send(200, msgspec.json.encode(self._rows(instance)[0]), _JSON)

    async def _remove_worker(self, client: ClientSide) -> None:
        wanted = unquote(client.path.removeprefix("/workers").removeprefix("/"))
        if not wanted:
            wanted = parse_qs(urlsplit(client.target).query).get("url", [""])[0]
        instance = self._endpoints.find(wanted)
        if instance is None:
            raise RequestError(f"no worker {wanted!r}", status=404, code="unknown_worker")
        rows = self._rows(instance)
        self._endpoints.remove(instance)
        await client.send(200, msgspec.json.encode(rows[0]), _JSON)
