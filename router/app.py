"""The front door: tells the router's own pages from calls to engines, and answers errors."""

import asyncio
import hmac
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

from router.client_side import ClientSide, drop_additions
from router.config import RouterConfig
from router.core.errors import RequestError
from router.core.prompt import PromptKey, RoutingFields, parse_body
from router.endpoints import Endpoints
from router.errors import GatewayError, error_body
from router.headers import Headers, request_headers, value_of, with_header, without_header
from router.keys import KeyMaker
from router.metrics import Metrics
from router.own_routes import OPEN_PATHS, OwnRoutes
from router.proxy import Call, Proxy
from router.trace import Trace
from router.upstream import RequestBody

log = logging.getLogger(__name__)

_PROMPT_PATHS: Final = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}


class FrontDoor:
    """Handles every request that reaches the router."""

    def __init__(
        self,
        config: RouterConfig,
        api_key: str,
        proxy: Proxy,
        own: OwnRoutes,
        endpoints: Endpoints,
        keys: KeyMaker,
        metrics: Metrics,
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        """`api_key` "" lets everybody in; `new_id` gives ids that are never the same."""
        self._config = config
        self._api_key = api_key.encode()
        self._proxy = proxy
        self._own = own
        self._endpoints = endpoints
        self._keys = keys
        self._metrics = metrics
        self._clock = clock
        self._new_id = new_id
        self.open_requests = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        app.on_response_prepare.append(drop_additions)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request: never raises but for a client that has gone."""
        client = ClientSide(request, closing=self._own.draining)
        trace = Trace(self._new_id(), client.method, client.path, self._clock())
        self.open_requests += 1
        self.idle.clear()
        try:
            await self._answer(client, trace)
        except (asyncio.CancelledError, ConnectionError):
            trace.outcome = "client_gone"
            raise
        finally:
            self.open_requests -= 1
            if not self.open_requests:
                self.idle.set()
            trace.record(self._metrics, self._clock(), self._config.access_log)
        return client.response()

    async def _answer(self, client: ClientSide, trace: Trace) -> None:
        try:
            await self._route(client, trace)
        except RequestError as error:
            trace.outcome, trace.error_code = "client_error", error.code
            await self._refuse(client, trace, error.status, error.code, error.message, [])
        except GatewayError as error:
            trace.outcome = "timeout" if error.status == 504 else "unavailable"
            trace.error_code = error.code
            after = error.retry_after_s
            extra = [] if after is None else [("Retry-After", str(after))]
            await self._refuse(client, trace, error.status, error.code, error.message, extra)
        except ConnectionError:
            raise
        except Exception:
            self._metrics.internal_errors.inc()
            log.exception("unexpected error on %s", client.path)
            trace.outcome, trace.error_code = "internal_error", "internal_error"
            await self._refuse(client, trace, 500, "internal_error", "internal error", [])

    @staticmethod
    async def _refuse(
        client: ClientSide, trace: Trace, status: int, code: str, message: str, extra: Headers
    ) -> None:
        if client.started:
            client.break_off()
            return
        trace.status = status
        headers = [("Content-Type", "application/json"), *extra]
        await client.send(status, error_body(message, status, code), headers)

    async def _route(self, client: ClientSide, trace: Trace) -> None:
        if client.path not in OPEN_PATHS:
            self._authorize(client)
        handler = self._own.find(client.method, client.path)
        if handler is not None:
            await handler(client)
            trace.ended(client.response().status)
            return
        if client.path == "/v1/models" and client.method in ("GET", "HEAD"):
            models = await self._own.models()
            if models is not None:
                trace.ended(200)
                await client.send(200, models, [("Content-Type", "application/json")])
                return
        await self._pass_on(client, trace)

    def _authorize(self, client: ClientSide) -> None:
        if self._api_key and not self._is_our_key(client.header("authorization")):
            raise RequestError("invalid API key", status=401, code="invalid_api_key")

    def _is_our_key(self, authorization: str | None) -> bool:
        scheme, _, key = (authorization or "").partition(" ")
        sent = key.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(sent, self._api_key)

    # --- calls to engines -------------------------------------------------------------------

    async def _pass_on(self, client: ClientSide, trace: Trace) -> None:
        deadline_s = asyncio.get_running_loop().time() + self._config.request_timeout_s
        kind = _PROMPT_PATHS.get(client.path) if client.method == "POST" else None
        trace.path_kind = kind or "other"
        try:
            async with asyncio.timeout_at(deadline_s):
                body = await self._body(client, kind is not None)
        except TimeoutError:
            raise RequestError("the body did not arrive", status=408, code="slow_body") from None
        prompt, model = await self._prompt(client, body if kind else None)
        call = Call(
            client.method,
            client.target,
            self._sent_headers(client, trace.request_id),
            body if isinstance(body, RequestBody) else RequestBody(body),
            prompt,
            model,
            deadline_s,
        )
        await self._proxy.serve(call, client, trace)

    async def _body(self, client: ClientSide, whole: bool) -> bytes | RequestBody:
        limit_bytes = self._config.max_payload_bytes
        if whole or not client.has_body or client.is_small():
            return await client.read_body(limit_bytes)
        client.check_length(limit_bytes)
        return RequestBody.streamed(client.stream_body, client.length_bytes)

    async def _prompt(
        self, client: ClientSide, body: bytes | RequestBody | None
    ) -> tuple[PromptKey, str | None]:
        """The prompt's key and the model asked for; nothing is known of other calls."""
        encoded = client.header("content-encoding") not in (None, "identity")
        if not isinstance(body, bytes) or encoded:
            return PromptKey("none", 0, (), self._config.block_tokens), None
        fields = parse_body(body)
        model = fields.model if isinstance(fields.model, str) else ""
        self._require_model(model)
        key = await self._key(fields, model, len(body))
        return key, model or None

    async def _key(self, fields: RoutingFields, model: str, body_bytes: int) -> PromptKey:
        key = await self._keys.key(fields, model or self._endpoints.default_model(), body_bytes)
        self._metrics.keys.labels(key.kind).inc()
        return key

    def _require_model(self, model: str) -> None:
        known = self._endpoints.known_models()
        if model and known is not None and model not in known:
            raise RequestError(
                f"the model {model!r} does not exist; available: {', '.join(known)}",
                status=404,
                code="model_not_found",
            )

    def _sent_headers(self, client: ClientSide, request_id: str) -> Headers:
        headers = request_headers(client.headers)
        if self._api_key:
            headers = without_header(headers, "authorization")
        if value_of(headers, "x-request-id") is None:
            headers = with_header(headers, "X-Request-Id", request_id)
        return headers
