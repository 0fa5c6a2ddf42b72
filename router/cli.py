"""Flags of the router, each standing for one configuration field."""

import argparse
from collections.abc import Sequence
from typing import Final

from router.config import RouterConfig, load_config
from router.core.policies import POLICIES

# (flag, field it sets, type, help)
_FLAGS: Final[tuple[tuple[str, str, type, str], ...]] = (
    ("--host", "host", str, "address to listen on"),
    ("--port", "port", int, "port to listen on; 0 takes a free one (default 30000)"),
    ("--prometheus-host", "prometheus_host", str, "address of the metrics listener"),
    ("--prometheus-port", "prometheus_port", int, "metrics port; 0 for none (default 29000)"),
    ("--nats-url", "nats_url", str, "event bus; without it the router uses its own decisions"),
    ("--pool", "pool", str, "pool of instances to follow on the bus"),
    ("--block-tokens", "block_tokens", int, "tokens per block, as relays announce it"),
    ("--secret-file", "secret_file", str, "file with the secret that relays hash with"),
    ("--api-key", "api_key", str, "bearer key that clients must send"),
    ("--api-key-file", "api_key_file", str, "file with that key"),
    ("--request-timeout-secs", "request_timeout_s", float, "longest life of a request"),
    ("--connect-timeout-secs", "connect_timeout_s", float, "longest wait for an engine's accept"),
    ("--max-payload-size", "max_payload_bytes", int, "largest request body, bytes"),
    ("--work-price", "work_price", float, "extra weight of uncached work in least_prefill"),
    ("--max-retries", "retries.max_retries", int, "other instances tried for one request"),
    ("--tokenizer", "tokenizer", str, "folder with tokenizer.json, or that file"),
    ("--seed", "dispatch.seed", int, "seed of the draws that break ties"),
    ("--drain-secs", "drain_s", float, "time for open requests after a stop signal"),
    ("--ready-file", "ready_file", str, "file that gets the router's URLs once it listens"),
)


def parse_arguments(argv: Sequence[str]) -> RouterConfig:
    """The configuration that a command line asks for.

    Raises:
        ConfigError: the file or a value cannot be used.
    """
    given = vars(_parser().parse_args(argv))
    path = given.pop("config", None)
    return load_config(path, given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmroute router",
        description="Routes each prompt to the engine whose KV cache holds most of it.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML or JSON; flags override it")
    parser.add_argument(
        "--worker-urls", nargs="*", metavar="URL", help="engines to use besides announced ones"
    )
    parser.add_argument("--policy", choices=list(POLICIES), help="default: least_prefill")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--access-log", action="store_true", help="one line per request")
    for flag, field, kind, text in _FLAGS:
        metavar = {int: "N", float: "X", str: "VALUE"}[kind]
        parser.add_argument(flag, dest=field, type=kind, metavar=metavar, help=text)
    return parser
