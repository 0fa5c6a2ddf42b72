"""Everything a mock engine can be told at start."""

from typing import Literal

import msgspec

from bench.engine.profiles import PROFILES

EventEncoding = Literal["map", "array"]
ReplayFraming = Literal["new", "old"]

_PORT_MAX = 65535


class MockEngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one mock engine.

    Raises:
        ValueError: a value is out of its range; the text names the field.
    """

    host: str = "127.0.0.1"
    port: int = 0  # HTTP; 0 takes a free one, here and below
    model: str = "mock-model"
    kv_events_port: int = 0
    kv_replay_port: int = 0
    profile: str = "llama-70b-h100-tp4"
    capacity_tokens: int = 1_000_000  # KV memory, at least one block
    block_tokens: int = 16
    max_batched_tokens: int = 8192
    max_seqs: int = 256
    speed: float = 1.0  # engine seconds per real second, above 0
    event_encoding: EventEncoding = "map"  # vLLM since 0.24; "array": before
    replay_framing: ReplayFraming = "new"  # vLLM since 0.26 (with topic); "old": before
    topic: str = ""
    buffer_steps: int = 10_000  # event batches kept for replay, at least 1
    hwm: int = 100_000  # event batches queued for a slow subscriber before dropping
    seed: int = 0  # of the generated tokens
    hash_seed: int | None = None  # of the engine's block hashes, 64 bits; None: drawn at start
    max_model_len: int = 131_072  # tokens of prompt and output
    tokenizer: str | None = None  # tokenizer.json or its folder; None: one token for each byte

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"profile: {self.profile!r} is none of {', '.join(PROFILES)}")
        if self.speed <= 0:
            raise ValueError(f"speed: must be above 0, got {self.speed}")
        for name in ("port", "kv_events_port", "kv_replay_port"):
            _check_range(name, getattr(self, name), 0, _PORT_MAX)
        for name in ("block_tokens", "buffer_steps", "hwm", "max_model_len", "max_seqs"):
            _check_range(name, getattr(self, name), 1, None)
        _check_range("capacity_tokens", self.capacity_tokens, self.block_tokens, None)
        _check_range("max_batched_tokens", self.max_batched_tokens, self.max_seqs, None)
        if self.hash_seed is not None:
            _check_range("hash_seed", self.hash_seed, 0, (1 << 64) - 1)

    @property
    def capacity_blocks(self) -> int:
        return self.capacity_tokens // self.block_tokens

    @property
    def context_tokens(self) -> int:
        """Longest prompt with output that is accepted: it must also fit into the KV memory."""
        return min(self.max_model_len, self.capacity_blocks * self.block_tokens)


def _check_range(name: str, value: int, low: int, high: int | None) -> None:
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name}: must be {limit}, got {value}")
