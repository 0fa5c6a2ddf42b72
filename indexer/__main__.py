"""`warmroute indexer`: follows the event bus and answers who holds which prefix."""

import argparse
import asyncio
import logging
import signal
import sys
import time
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from indexer.config import ConfigError, IndexerConfig, load_config, read_secret
from indexer.core.ingest import Ingest
from indexer.feed import IndexFeed
from indexer.metrics import IndexCollector
from indexer.service import IndexerService

log = logging.getLogger("warmroute.indexer")


def main(argv: list[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT. Returns 2 for a configuration error."""
    try:
        config = _configuration(sys.argv[1:] if argv is None else argv)
        secret = read_secret(config.secret_file)
    except ConfigError as error:
        print(f"warmroute indexer: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(_serve(config, secret))
    return 0


def _configuration(argv: list[str]) -> IndexerConfig:
    parser = argparse.ArgumentParser(prog="warmroute indexer", description=__doc__)
    parser.add_argument("--config", type=Path, help="TOML or JSON file")
    parser.add_argument("--host", dest="host")
    parser.add_argument("--port", dest="port", type=int)
    parser.add_argument("--nats-url", dest="feed.nats_url")
    parser.add_argument("--pool", dest="feed.pool")
    parser.add_argument("--block-tokens", dest="block_tokens", type=int)
    parser.add_argument("--secret-file", dest="secret_file")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    values = vars(parser.parse_args(argv))
    path = values.pop("config")
    return load_config(path, {name: v for name, v in values.items() if v is not None})


async def _serve(config: IndexerConfig, secret: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    feed = IndexFeed(config.feed, Ingest(config.ingest), time.monotonic)
    registry = CollectorRegistry()
    registry.register(IndexCollector(feed, time.monotonic, "warmroute_indexer"))
    service = IndexerService(config, secret, feed, registry, time.monotonic)
    runner = web.AppRunner(service.application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, config.host, config.port)
    await feed.start()
    try:
        await site.start()
        log.info("indexer listening on %s", runner.addresses)
        await stop.wait()
    finally:
        await feed.stop()
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
