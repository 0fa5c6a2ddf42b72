"""`bench nats`: a NATS server in the foreground."""

import argparse
import os
from collections.abc import Sequence

from bench.stack.nats_server import find_nats_server


def nats_main(argv: Sequence[str]) -> int:
    """Becomes the server; returns 1 only when there is none to become."""
    parser = argparse.ArgumentParser(prog="warmroute bench nats", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=4222, help="port; -1 for a random one")
    args = parser.parse_args(argv)
    try:
        program = find_nats_server()
    except FileNotFoundError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    os.execv(program, [program, "-a", args.host, "-p", str(args.port)])  # noqa: S606 - no shell
