"""Cache changes of the engine model as vLLM's KV events, and whose content they name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from bench.engine.block_cache import Cleared, KvEvent, Removed, Stored
from bench.mock_engine.config import EventEncoding
from bench.mock_engine.prompts import PreparedPrompt

_MEDIUM: Final = "GPU"
_GROUP: Final = 0
_RANK: Final = 0
# Fields without a default in vLLM: a map holds them also when they are null.
_REQUIRED: Final = frozenset(
    {
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
    }
)
_encoder: Final = msgspec.msgpack.Encoder()


class EventTranslator:
    """Translates the events of each step and keeps warmroute's name of every announced block.

    Args:
        block_tokens: tokens of one block.
        encoding: "map" as vLLM since 0.24 or positional "array" as 0.23.
    """

    def __init__(self, block_tokens: int, encoding: EventEncoding) -> None:
        self._block_tokens = block_tokens
        self._encoding = encoding
        self.own_hashes: dict[int, int] = {}  # engine hash -> warmroute hash, as announced

    def payload(
        self, ts_s: float, events: Sequence[KvEvent], prompts: Mapping[str, PreparedPrompt]
    ) -> bytes:
        """One event batch in msgpack; `prompts` has every request that stored a block.

        `ts_s` is the wall clock in seconds.
        """
        wire = [self._translate(event, prompts) for event in events]
        return _encoder.encode([ts_s, wire, _RANK])

    def _translate(self, event: KvEvent, prompts: Mapping[str, PreparedPrompt]) -> Any:
        match event:
            case Stored():
                prompt = prompts[event.request_id]
                self.own_hashes.update(_names(event, prompt))
                return self._encode("BlockStored", self._stored(event, prompt))
            case Removed():
                self._forget(event.hashes)
                return self._encode("BlockRemoved", _removed(event))
            case Cleared():
                self.own_hashes.clear()
                return self._encode("AllBlocksCleared", {})

    def _forget(self, hashes: Iterable[int]) -> None:
        for name in hashes:
            del self.own_hashes[name]

    def _stored(self, event: Stored, prompt: PreparedPrompt) -> dict[str, Any]:
        start, count = event.start_block_index, len(event.hashes)
        first_token, last_token = start * self._block_tokens, (start + count) * self._block_tokens
        extra_keys: list[list[str] | None] = [None] * count
        if start == 0 and prompt.cache_salt:
            extra_keys[0] = [prompt.cache_salt]
        return {
            "block_hashes": event.hashes,
            "parent_block_hash": event.parent_hash,
            "token_ids": list(prompt.token_ids[first_token:last_token]),
            "block_size": self._block_tokens,
            "lora_id": None,
            "medium": _MEDIUM,
            "lora_name": None,
            "extra_keys": extra_keys,
            "group_idx": _GROUP,
            "kv_cache_spec_kind": "full_attention",
            "kv_cache_spec_sliding_window": None,
        }

    def _encode(self, tag: str, fields: dict[str, Any]) -> Any:
        if self._encoding == "array":
            return [tag, *fields.values()]
        kept = {
            name: value for name, value in fields.items() if value is not None or name in _REQUIRED
        }
        return {"type": tag, **kept}


def _removed(event: Removed) -> dict[str, Any]:
    return {"block_hashes": event.hashes, "medium": _MEDIUM, "group_idx": _GROUP}


def _names(event: Stored, prompt: PreparedPrompt) -> Iterable[tuple[int, int]]:
    start = event.start_block_index
    return zip(event.hashes, prompt.own_hashes[start : start + len(event.hashes)], strict=True)
