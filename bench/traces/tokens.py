"""Prompts as token ids: each block id stands for tokens drawn from (namespace, id).

Equal ids give equal tokens, so engines and router find the very sharing that the trace recorded,
at any block size of theirs. A replay sends millions of ids; their JSON text is therefore made once
per block and kept, and a body is a join of such fragments.
"""

from functools import lru_cache

import msgspec
import numpy as np

from bench.traces.record import TraceRequest

VOCABULARY = 100_000
_CACHED_FRAGMENTS = 20_000  # about 3 KB each for blocks of 512 tokens


class PromptTokens:
    """Token ids and JSON bodies for the prompts of one replay.

    Args:
        namespace: >= 0; another number gives other tokens for every block, so that a second run
            against the same engines finds nothing cached.
        block_tokens: tokens of a full block of the trace, >= 1.
    """

    def __init__(self, namespace: int, block_tokens: int) -> None:
        self._namespace = namespace
        self._block_tokens = block_tokens
        self._fragment = lru_cache(_CACHED_FRAGMENTS)(self._encode_block)

    def of_block(self, block_id: int) -> list[int]:
        """The ids of one full block, each in 0..VOCABULARY-1."""
        rng = np.random.default_rng((self._namespace, block_id))
        ids: list[int] = rng.integers(0, VOCABULARY, self._block_tokens).tolist()
        return ids

    def of_prompt(self, request: TraceRequest) -> list[int]:
        """All `request.input_tokens` ids of the prompt."""
        ids = [token for block_id in request.block_ids for token in self.of_block(block_id)]
        return ids[: request.input_tokens]

    def json_array(self, request: TraceRequest) -> bytes:
        """`of_prompt(request)` as compact JSON."""
        *full, last = request.block_ids
        parts = [self._fragment(block_id) for block_id in full]
        kept = request.tokens_of_block(len(full))
        parts.append(_without_brackets(self.of_block(last)[:kept]))
        return b"[" + b",".join(parts) + b"]"

    def _encode_block(self, block_id: int) -> bytes:
        return _without_brackets(self.of_block(block_id))


def completion_body(prompt_json: bytes, *, model: str, max_tokens: int) -> bytes:
    """A streaming `/v1/completions` request that generates exactly `max_tokens` (>= 1) tokens."""
    head = msgspec.json.encode(
        {
            "model": model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    return head[:-1] + b',"prompt":' + prompt_json + b"}"


def _without_brackets(ids: list[int]) -> bytes:
    return msgspec.json.encode(ids)[1:-1]
