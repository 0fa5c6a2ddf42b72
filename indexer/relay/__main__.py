"""`warmroute relay`: see `--help`."""

import asyncio
import gc
import logging
import signal
import sys

import uvloop

from indexer.relay.config import ConfigError, RelayConfig, parse_config
from indexer.relay.service import serve


def main(argv: list[str] | None = None) -> int:
    """Runs a relay until SIGTERM or SIGINT.

    Returns:
        0 after an orderly stop, 1 when its HTTP address is taken, 2 for bad settings.
    """
    try:
        config = parse_config(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        print(f"warmroute relay: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Millions of small, long-lived objects: frequent full collections would only cost pauses.
    gc.set_threshold(50_000, 20, 50)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_run(config))
        except OSError as error:
            print(f"warmroute relay: {error}", file=sys.stderr)
            return 1
    return 0


async def _run(config: RelayConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(config, stop)


if __name__ == "__main__":
    sys.exit(main())
