"""`python -m bench`: hands each subcommand to the module that serves it."""

import importlib
import sys

# Subcommand -> (module, function, help). Imported only when asked for: a mock engine needs no
# plots, and a fleet starts many of them.
COMMANDS = {
    "demo": ("bench.live.cli", "demo_main", "two policies side by side in about two minutes"),
    "live": ("bench.live.cli", "live_main", "full replay: policies and loads compared"),
    "outage": ("bench.live.cli", "outage_main", "NATS killed in the middle of a run"),
    "replay": ("bench.live.cli", "replay_main", "replay against a server that runs already"),
    "sim": ("bench.sim.cli", "main", "policies on a modelled fleet, in virtual time"),
    "index": ("bench.index.cli", "main", "rates, latencies and memory of the index"),
    "mock-engine": ("bench.mock_engine.__main__", "main", "one engine that speaks vLLM's wire"),
    "nats": ("bench.stack.cli", "nats_main", "the embedded NATS server in the foreground"),
}


def usage() -> str:
    rows = "\n".join(f"  {name:<13} {entry[2]}" for name, entry in COMMANDS.items())
    return f"usage: warmroute bench COMMAND [OPTIONS]\n\ncommands:\n{rows}"


def main(argv: list[str] | None = None) -> int:
    """Runs one subcommand and returns its exit status (2 for an unknown command)."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0 if args else 2
    entry = COMMANDS.get(args[0])
    if entry is None:
        print(f"warmroute bench: unknown command {args[0]!r}\n\n{usage()}", file=sys.stderr)
        return 2
    module_name, function_name, _ = entry
    result: int = getattr(importlib.import_module(module_name), function_name)(args[1:])
    return result


if __name__ == "__main__":
    sys.exit(main())
