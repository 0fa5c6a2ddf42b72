"""`python -m bench.mock_engine`: one mock engine process."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import get_args

import msgspec
import uvloop

from bench.engine.profiles import PROFILES
from bench.mock_engine.config import EventEncoding, MockEngineConfig, ReplayFraming
from bench.mock_engine.engine import MockEngine
from bench.mock_engine.faults import Faults


def main(argv: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT.

    Once serving, prints one JSON line with `url`, `kv_events` and `kv_replay`.

    Returns:
        0 after an orderly stop, 1 when a port is taken, 2 for wrong arguments.
    """
    args = vars(_parser().parse_args(argv))
    ready_file, fault = args.pop("ready_file"), args.pop("fault")
    try:
        engine = MockEngine(MockEngineConfig(**args), msgspec.json.decode(fault, type=Faults))
    except ValueError as error:
        print(f"mock engine: {error}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_serve(engine, ready_file))
    except OSError as error:
        print(f"mock engine: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(engine: MockEngine, ready_file: Path | None) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with engine:
        _announce(engine, ready_file)
        await stopped.wait()


def _announce(engine: MockEngine, ready_file: Path | None) -> None:
    endpoints = {"url": engine.url, "kv_events": engine.kv_events, "kv_replay": engine.kv_replay}
    line = msgspec.json.encode(endpoints).decode()
    if ready_file is not None:
        # Renamed into place, so that a reader never sees half of it.
        partial = ready_file.with_name(ready_file.name + ".part")
        partial.write_text(line + "\n")
        partial.replace(ready_file)
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    default = MockEngineConfig()
    parser = argparse.ArgumentParser(
        prog="python -m bench.mock_engine",
        description="A mock engine that speaks vLLM's HTTP and KV events in simulated time.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default=default.host)
    add("--port", type=int, default=default.port, help="0 takes a free one")
    add("--model", default=default.model, help="served model name")
    add("--kv-events-port", type=int, default=default.kv_events_port, help="0 takes a free one")
    add("--kv-replay-port", type=int, default=default.kv_replay_port, help="0 takes a free one")
    add("--profile", choices=sorted(PROFILES), default=default.profile, help="step durations")
    add("--capacity-tokens", type=int, default=default.capacity_tokens, help="KV memory")
    add("--block-size", dest="block_tokens", type=int, default=default.block_tokens, help="tokens")
    add("--max-num-batched-tokens", dest="max_batched_tokens", type=int,
        default=default.max_batched_tokens, help="new tokens in one step")  # fmt: skip
    add("--max-num-seqs", dest="max_seqs", type=int, default=default.max_seqs)
    add("--speed", type=float, default=default.speed, help="engine seconds per real second")
    add("--event-encoding", choices=get_args(EventEncoding), default=default.event_encoding)
    add("--replay-framing", choices=get_args(ReplayFraming), default=default.replay_framing)
    add("--topic", default=default.topic, help="of the KV events")
    add("--buffer-steps", type=int, default=default.buffer_steps, help="batches kept for replay")
    add("--hwm", type=int, default=default.hwm, help="batches queued for a slow subscriber")
    add("--seed", type=int, default=default.seed, help="of the generated tokens")
    add("--hash-seed", type=int, default=default.hash_seed, help="of the block hashes; else random")
    add("--max-model-len", type=int, default=default.max_model_len, help="tokens")
    add("--tokenizer", default=default.tokenizer, help="tokenizer.json or its folder; else bytes")
    add("--fault", default="{}", metavar="JSON", help="faults, as for POST /mock/fault")
    add("--ready-file", type=Path, help="gets the same JSON line as stdout once serving")
    return parser


if __name__ == "__main__":
    sys.exit(main())
