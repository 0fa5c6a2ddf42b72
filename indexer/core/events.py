"""The wire of the KV event bus: what relays, indexers and routers say to each other over NATS.

Everything is msgpack maps, so fields can be added: readers skip unknown keys, new fields have
defaults, and an op with an unknown name or tier is counted and skipped without losing its batch.
"""

from collections.abc import Sequence
from typing import Final, Literal, TypeVar

import msgspec

from indexer.core.tiers import TIER_OF, Tier

WIRE_VERSION: Final = 1
TierName = Literal["gpu", "host", "disk", "remote"]


class WireError(ValueError):
    """A message on the bus cannot be understood; the text says what is wrong with it."""


class Register(msgspec.Struct, frozen=True, tag="register", tag_field="op"):
    """The stream's owner now holds these blocks in `tier`."""

    tier: TierName
    hashes: bytes  # little-endian u64 each


class Evict(msgspec.Struct, frozen=True, tag="evict", tag_field="op"):
    """The stream's owner no longer holds these blocks in `tier`."""

    tier: TierName
    hashes: bytes


class Clear(msgspec.Struct, frozen=True, tag="clear", tag_field="op"):
    """All blocks of `tier`, or of every tier when None, are gone."""

    tier: TierName | None = None


Op = Register | Evict | Clear


class Batch(msgspec.Struct, frozen=True):
    """Consecutive changes of one stream: (instance, rank) within one epoch."""

    instance: str
    rank: int
    epoch: int  # one life of the engine as its relay saw it; later lives have larger numbers
    seq: int  # from 0 in each epoch, without holes
    sent_at: float  # sender's wall clock, seconds
    ops: list[Op]
    v: int = WIRE_VERSION


class StreamState(msgspec.Struct, frozen=True):
    """What a heartbeat says about one rank's event stream and load."""

    rank: int
    epoch: int
    seq: int  # last published sequence number, -1 before the first batch
    count: int  # (tier, block) pairs held after `seq`
    digest: int  # XOR of their digest terms
    running: int | None = None  # requests in the running batch; None: not known
    waiting: int | None = None  # requests queued in the engine
    kv_usage: float | None = None  # share of KV blocks in use by requests, 0 to 1
    load_age_s: float | None = None  # age of the three fields above when sent
    event_lag_s: float | None = None  # engine event time to publication, last batch


class Heartbeat(msgspec.Struct, frozen=True):
    """Announces an engine and the state of its streams, about once a second."""

    instance: str
    pool: str
    sent_at: float
    streams: list[StreamState]
    url: str
    model: str
    block_tokens: int
    role: str = "both"  # both | prefill | decode
    engine: str = ""  # "vllm 0.33.0" or the like
    capacity_tokens: int | None = None
    models: list[str] = []
    leaving: bool = False  # True in the last heartbeat of an orderly stop
    v: int = WIRE_VERSION


class SnapshotRequest(msgspec.Struct, frozen=True):
    """Asks the owner of `instance` (by subject) for all it holds."""

    rank: int
    v: int = WIRE_VERSION


class SnapshotChunk(msgspec.Struct, frozen=True):
    """Part of a snapshot: the content as it was right after batch `seq` of `epoch`."""

    instance: str
    rank: int
    epoch: int
    seq: int  # watermark; -1 when nothing was published yet
    chunk: int  # 0-based
    chunks: int
    count: int  # of the whole snapshot
    digest: int  # of the whole snapshot
    ops: list[Register]
    v: int = WIRE_VERSION


class _LooseBatch(msgspec.Struct, frozen=True):
    """A batch whose ops are decoded one by one, for when one of them is not known here."""

    instance: str
    rank: int
    epoch: int
    seq: int
    sent_at: float
    ops: list[msgspec.Raw]
    v: int = WIRE_VERSION


_Message = TypeVar("_Message", Heartbeat, SnapshotRequest, SnapshotChunk)

_encoder = msgspec.msgpack.Encoder()
_batch_decoder = msgspec.msgpack.Decoder(Batch)
_loose_decoder = msgspec.msgpack.Decoder(_LooseBatch)
_op_decoder = msgspec.msgpack.Decoder(Op)
_heartbeat_decoder = msgspec.msgpack.Decoder(Heartbeat)
_request_decoder = msgspec.msgpack.Decoder(SnapshotRequest)
_chunk_decoder = msgspec.msgpack.Decoder(SnapshotChunk)


def encode(message: Batch | Heartbeat | SnapshotRequest | SnapshotChunk) -> bytes:
    return _encoder.encode(message)


def decode_batch(data: bytes) -> tuple[Batch, int]:
    """A batch and the number of its ops that were skipped as unknown.

    Raises:
        WireError: not msgpack, a required field is missing, or the version is newer than ours.
    """
    try:
        batch = _batch_decoder.decode(data)
        skipped = 0
    except msgspec.DecodeError:
        batch, skipped = _decode_loosely(data)
    _check_version(batch.v)
    return batch, skipped


def _decode_loosely(data: bytes) -> tuple[Batch, int]:
    try:
        loose = _loose_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise WireError(f"batch: {error}") from error
    ops: list[Op] = []
    for raw in loose.ops:
        try:
            ops.append(_op_decoder.decode(raw))
        except msgspec.DecodeError:
            continue
    batch = Batch(loose.instance, loose.rank, loose.epoch, loose.seq, loose.sent_at, ops, loose.v)
    return batch, len(loose.ops) - len(ops)


def decode_heartbeat(data: bytes) -> Heartbeat:
    return _decode(_heartbeat_decoder, data, "heartbeat")


def decode_snapshot_request(data: bytes) -> SnapshotRequest:
    return _decode(_request_decoder, data, "snapshot request")


def decode_snapshot_chunk(data: bytes) -> SnapshotChunk:
    return _decode(_chunk_decoder, data, "snapshot chunk")


def _decode(decoder: msgspec.msgpack.Decoder[_Message], data: bytes, what: str) -> _Message:
    try:
        message = decoder.decode(data)
    except msgspec.DecodeError as error:
        raise WireError(f"{what}: {error}") from error
    _check_version(message.v)
    return message


def _check_version(version: int) -> None:
    if version > WIRE_VERSION:
        raise WireError(f"wire version {version} is newer than {WIRE_VERSION}")


def tier_of(name: TierName) -> Tier:
    return TIER_OF[name]


def hash_count(ops: Sequence[Op]) -> int:
    """Block operations in `ops`; a clear counts as none."""
    return sum(len(op.hashes) // 8 for op in ops if not isinstance(op, Clear))
