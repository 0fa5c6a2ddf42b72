"""KV events as engines publish them: vLLM and SGLang, every version, one result.

A batch is the msgpack array `[ts, events, dp_rank]`. An event is a positional array with its tag
first (vLLM up to 0.23, SGLang up to 0.5.19) or a map with its name under `type` (later). Hashes are
ints, signed or not, or bytes; they are opaque here. What cannot be used is skipped and counted by
reason, so one odd event never costs its batch.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from indexer.core.chains import MediaStart
from indexer.core.tiers import Tier

EngineHash = int | bytes

END_OF_REPLAY: Final = -1
_MEDIA: Final = {
    "gpu": Tier.GPU,
    "cpu": Tier.HOST,
    "cpu_pinned": Tier.HOST,
    "storage": Tier.DISK,
    "disk": Tier.DISK,
    "external": Tier.DISK,
}
# Other kinds (sliding window, Mamba, ...) leave out hashes, so their blocks are no prefix chain.
_CHAINED_KINDS: Final = ("full_attention", "mla_attention")


class EngineEventError(ValueError):
    """Bytes from an engine that are no event batch; the text says why."""


class Stored(msgspec.Struct, frozen=True):
    """One more copy of each of these consecutive blocks lies in `tier`."""

    hashes: list[EngineHash]
    parent: EngineHash | None  # block just before the range; None: the range starts at token 0
    token_ids: list[int]  # empty: a placeholder that only names its hashes
    block_size: int  # tokens per block; 0 in placeholders
    tier: Tier = Tier.GPU
    lora: str = ""
    cache_salt: str = ""  # only known at token 0, where it matters
    media: tuple[MediaStart, ...] = ()  # items that begin in this range, by offset in it
    group: int = 0
    chained: bool = True  # False: the group's blocks do not form a prefix chain


class Removed(msgspec.Struct, frozen=True):
    """One copy of each of these blocks is gone from `tier`."""

    hashes: list[EngineHash]
    tier: Tier = Tier.GPU
    group: int = 0


class Cleared(msgspec.Struct, frozen=True):
    """The engine dropped everything."""


EngineEvent = Stored | Removed | Cleared


class EngineBatch(msgspec.Struct, frozen=True):
    """What one engine step changed."""

    ts: float  # engine's wall clock, seconds
    events: list[EngineEvent]
    rank: int | None = None
    skipped: dict[str, int] = {}  # reason -> events not usable


class _StoredFields(msgspec.Struct, frozen=True):
    """In the order of the positional encoding."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None = None
    token_ids: list[int] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _RemovedFields(msgspec.Struct, frozen=True):
    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class _ArrayStored(_StoredFields, frozen=True, array_like=True, tag="BlockStored"):
    pass


class _ArrayRemoved(_RemovedFields, frozen=True, array_like=True, tag="BlockRemoved"):
    pass


class _ArrayCleared(msgspec.Struct, frozen=True, array_like=True, tag="AllBlocksCleared"):
    pass


class _MapStored(_StoredFields, frozen=True, tag="BlockStored", tag_field="type"):
    cache_salt: str | None = None
    locality: str | None = None


class _MapRemoved(_RemovedFields, frozen=True, tag="BlockRemoved", tag_field="type"):
    locality: str | None = None


class _MapCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared", tag_field="type"):
    pass


_ArrayEvent = _ArrayStored | _ArrayRemoved | _ArrayCleared
_MapEvent = _MapStored | _MapRemoved | _MapCleared
_WireEvent = _ArrayEvent | _MapEvent


class _ArrayBatch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[_ArrayEvent]
    rank: int | None = None


class _MapBatch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[_MapEvent]
    rank: int | None = None


class _LooseBatch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    rank: Any = None


class _SkippedError(Exception):
    """An event that cannot be used, with the reason under which it is counted."""


_loose_decoder = msgspec.msgpack.Decoder(_LooseBatch)
_array_event_decoder = msgspec.msgpack.Decoder(_ArrayEvent)
_map_event_decoder = msgspec.msgpack.Decoder(_MapEvent)


class BatchDecoder:
    """Decodes one publisher's batches; tries the encoding that worked last first."""

    def __init__(self) -> None:
        self._likely: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_MapBatch)
        self._other: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_ArrayBatch)

    def decode(self, payload: bytes) -> EngineBatch:
        """The batch in `payload`, without what cannot be used.

        Raises:
            EngineEventError: not msgpack, or not `[ts, events, ...]`.
        """
        try:
            return _result(self._likely.decode(payload))
        except msgspec.DecodeError:
            self._likely, self._other = self._other, self._likely
        try:
            return _result(self._likely.decode(payload))
        except msgspec.DecodeError:
            return _decode_loosely(payload)


def split_frames(frames: Sequence[bytes]) -> tuple[int, bytes]:
    """Sequence number and payload of a live or replayed message; they are its last two frames.

    What precedes them (topic, delimiter) differs between versions. `END_OF_REPLAY` as the number
    says that a replay is complete.

    Raises:
        EngineEventError: fewer than two frames, or the number is not 8 bytes long.
    """
    if len(frames) < 2 or len(frames[-2]) != 8:
        raise EngineEventError(f"{len(frames)} frames without a sequence number")
    return int.from_bytes(frames[-2], "big", signed=True), frames[-1]


def _result(batch: _ArrayBatch | _MapBatch) -> EngineBatch:
    skipped: Counter[str] = Counter()
    events: list[EngineEvent] = []
    for event in batch.events:
        try:
            events.append(_convert(event))
        except _SkippedError as reason:
            skipped[str(reason)] += 1
    return EngineBatch(batch.ts, events, batch.rank, skipped)


def _decode_loosely(payload: bytes) -> EngineBatch:
    try:
        batch = _loose_decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise EngineEventError(f"event batch: {error}") from error
    skipped: Counter[str] = Counter()
    events: list[EngineEvent] = []
    for raw in batch.events:
        try:
            events.append(_convert(_decode_event(raw)))
        except _SkippedError as reason:
            skipped[str(reason)] += 1
    return EngineBatch(batch.ts, events, batch.rank if type(batch.rank) is int else None, skipped)


def _decode_event(raw: msgspec.Raw) -> _WireEvent:
    for decoder in (_map_event_decoder, _array_event_decoder):
        try:
            event: _WireEvent = decoder.decode(raw)
        except msgspec.DecodeError:
            continue
        return event
    raise _SkippedError(_why_undecodable(msgspec.msgpack.decode(raw)))


def _why_undecodable(event: object) -> str:
    fields: list[Any] = []
    name: object = None
    if isinstance(event, dict):
        name, fields = event.get("type"), [event.get("token_ids")]
    elif isinstance(event, list) and event:
        name, fields = event[0], event[3:4]
    if name not in ("BlockStored", "BlockRemoved", "AllBlocksCleared"):
        return "unknown_type"
    # Speculative drafting can make the engine's tokens pairs. Which of the two a position stands
    # for is not part of the engines' contract, so these are not guessed at.
    if fields and isinstance(fields[0], list) and any(isinstance(t, list) for t in fields[0]):
        return "bigram"
    return "malformed"


def _convert(event: _WireEvent) -> EngineEvent:
    if isinstance(event, _StoredFields):
        return _stored(event)
    if isinstance(event, _RemovedFields):
        return Removed(event.block_hashes, _tier(event), event.group_idx or 0)
    return Cleared()


def _stored(event: _StoredFields) -> Stored:
    lora = event.lora_name or ""
    if not lora and event.lora_id is not None:
        # Before 0.14.1 adapters have no name here. A made-up one keeps their blocks apart.
        lora = f"lora-id-{event.lora_id}"
    salt, media = _identity(event)
    if isinstance(event, _MapStored) and event.cache_salt:
        salt = event.cache_salt
    return Stored(
        event.block_hashes,
        event.parent_block_hash,
        event.token_ids,
        event.block_size,
        _tier(event),
        lora,
        salt,
        media,
        event.group_idx or 0,
        _is_chained(event.kv_cache_spec_kind, event.group_idx),
    )


def _tier(event: _StoredFields | _RemovedFields) -> Tier:
    if event.medium is None:
        return Tier.GPU
    tier = _MEDIA.get(event.medium.lower())
    if tier is None:
        raise _SkippedError("medium")
    if isinstance(event, _MapStored | _MapRemoved) and event.locality == "REMOTE":
        return Tier.REMOTE
    return tier


def _is_chained(kind: str | None, group: int | None) -> bool:
    if kind is None or kind == "unknown":
        return not group
    return kind in _CHAINED_KINDS


def _identity(event: _StoredFields) -> tuple[str, tuple[MediaStart, ...]]:
    """Cache salt and media starts from `extra_keys`, which hold one untagged list per block.

    An item's offset is relative to the block; below zero it began in an earlier block. A string is
    the adapter's name, then the salt (first block only), else the digest of prompt embeddings.
    """
    if not event.extra_keys:
        return "", ()
    salt = ""
    media: list[MediaStart] = []
    for index, keys in enumerate(event.extra_keys):
        start = index * event.block_size
        texts = [key for key in keys or () if isinstance(key, str | bytes)]
        if event.lora_name in texts:
            texts.remove(event.lora_name)
        if index == 0 and event.parent_block_hash is None and texts:
            salt = _text(texts.pop(0))
        media += [(start, _text(text)) for text in texts if text]
        media += [(start + key[1], _text(key[0])) for key in keys or () if _begins_here(key, event)]
    return salt, tuple(sorted(media, key=lambda item: item[0]))


def _begins_here(key: object, event: _StoredFields) -> bool:
    match key:
        case [str() | bytes() as name, int() as offset]:
            return bool(name) and 0 <= offset < event.block_size
        case _:
            return False


def _text(identity: str | bytes) -> str:
    return identity if isinstance(identity, str) else identity.hex()
