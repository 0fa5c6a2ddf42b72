"""`warmroute router`: reads the configuration, runs one router until a stop signal."""

import asyncio
import json
import logging
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import uvloop

from router.cli import parse_arguments
from router.config import ConfigError, RouterConfig
from router.service import Router, running

log = logging.getLogger("router")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 after an orderly stop, 2 for a bad configuration, 1 otherwise."""
    try:
        config = parse_arguments(sys.argv[1:] if argv is None else argv)
        logging.basicConfig(
            stream=sys.stderr,
            level=config.log_level.upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot listen: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: RouterConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    router = Router(config, time.monotonic, lambda: uuid.uuid4().hex)
    async with running(router):
        log.info("listening on %s, metrics on %s", router.url, router.metrics_url or router.url)
        if config.ready_file is not None:
            _announce(Path(config.ready_file), router)
        await stop.wait()
        log.info("stopping: %d requests are open", router.door.open_requests)
        await router.drain()


def _announce(file: Path, router: Router) -> None:
    """Written whole or not at all, because somebody waits for it."""
    urls = {"url": router.url, "metrics_url": router.metrics_url or router.url}
    partial = file.with_name(file.name + ".partial")
    partial.write_text(json.dumps(urls), encoding="utf-8")
    partial.replace(file)


if __name__ == "__main__":
    sys.exit(main())
