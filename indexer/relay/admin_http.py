"""The relay's own HTTP endpoint: `/metrics` and `/health`."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


@asynccontextmanager
async def admin_endpoint(
    host: str, port: int, registry: CollectorRegistry, health: Callable[[], dict[str, Any]]
) -> AsyncIterator[None]:
    """Serves while the context lasts; port 0 serves nothing.

    Raises:
        OSError: the address cannot be listened on.
    """
    if port == 0:
        yield
        return
    runner = web.AppRunner(_app(registry, health), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()


def _app(registry: CollectorRegistry, health: Callable[[], dict[str, Any]]) -> web.Application:
    async def metrics(_request: web.Request) -> web.Response:
        body = generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_request: web.Request) -> web.Response:
        return web.json_response(health())

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/health", healthy)])
    return app
