"""The `warmroute` command: hands each subcommand to the `__main__` of the part that serves it."""

import importlib
import sys
from importlib import metadata

# Subcommand -> (module, function). Imported only when asked for, so that a router never
# pays for what the bench needs.
COMMANDS = {
    "router": ("router.__main__", "main", "HTTP router in front of the engines"),
    "indexer": ("indexer.__main__", "main", "global index service"),
    "relay": (
        "indexer.relay.__main__",
        "main",
        "reads engines' KV events, publishes them over NATS",
    ),
    "bench": ("bench.__main__", "main", "replay, simulation and mock engines"),
    "check-config": ("router.check_config", "main", "print a resolved configuration or its error"),
}


def usage() -> str:
    rows = "\n".join(f"  {name:<13} {entry[2]}" for name, entry in COMMANDS.items())
    return (
        f"usage: warmroute COMMAND [OPTIONS]\n\ncommands:\n{rows}\n\n"
        "warmroute COMMAND --help tells more."
    )


def main(argv: list[str] | None = None) -> int:
    """Runs one subcommand and returns its exit status (2 for an unknown command)."""
    args = sys.argv[1:] if argv is None else argv
    if args[:1] in (["--version"], ["-V"]):
        print(f"warmroute {metadata.version('warmroute')}")
        return 0
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0 if args else 2
    entry = COMMANDS.get(args[0])
    if entry is None:
        print(f"warmroute: unknown command {args[0]!r}\n\n{usage()}", file=sys.stderr)
        return 2
    module_name, function_name, _ = entry
    result: int = getattr(importlib.import_module(module_name), function_name)(args[1:])
    return result


if __name__ == "__main__":
    sys.exit(main())
