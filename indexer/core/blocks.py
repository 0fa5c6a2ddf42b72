"""Block hashes: the one place that turns tokens into the names of prefixes.

A block is `block_tokens` consecutive tokens counted from position 0; a partial last block has no
hash. The hash of a block is XXH3-64 over its token ids (little-endian u32), seeded with the hash
of the block before it; the first block is seeded with the namespace hash. One 64-bit number thus
names a whole prefix within its namespace. This module knows nothing of engines' own hashes.
"""

import sys
from array import array
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

_FIELD_SEPARATOR = b"\x1f"
_U32_TYPECODE = "I" if array("I").itemsize == 4 else "L"


def namespace_hash(
    model: str,
    *,
    lora: str = "",
    cache_salt: str = "",
    secret: str = "",
) -> int:
    """Seed of every chain: prompts that may not share KV blocks get different seeds.

    Args:
        model: served model name.
        lora: adapter name; "" for the base model.
        cache_salt: the request's cache isolation salt; "" for none.
        secret: deployment secret that keeps hashes of known prompts unguessable on the bus.

    Returns:
        An unsigned 64-bit integer. Images and audio enter a chain where they begin, see `chains`.
        Fields are length-prefixed, so characters cannot move from one field into the next.
    """
    fields = [model, lora, cache_salt, secret]
    encoded = _FIELD_SEPARATOR.join(
        len(raw).to_bytes(4, "little") + raw for raw in (field.encode() for field in fields)
    )
    return int(xxh3_64_intdigest(encoded))


def token_bytes(token_ids: Iterable[int]) -> bytes:
    """Token ids as little-endian u32, the input of the block hash.

    Raises:
        OverflowError: a token id is negative or above 2**32 - 1.
        TypeError: a token id is not an integer.
    """
    packed = array(_U32_TYPECODE, token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def chain_hashes(data: bytes, block_bytes: int, seed: int) -> list[int]:
    """Chained XXH3-64 of every full `block_bytes` slice of `data`, oldest first.

    `seed` is the namespace hash, or the hash of the block just before `data`.
    """
    view = memoryview(data)
    hashes: list[int] = []
    append = hashes.append
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        seed = xxh3_64_intdigest(view[start : start + block_bytes], seed)
        append(seed)
    return hashes


def block_hashes(token_ids: Iterable[int], block_tokens: int, seed: int) -> list[int]:
    """Hash of every full block of `token_ids`; see the module's definition.

    Raises:
        ValueError: `block_tokens` is not positive.
        OverflowError: a token id does not fit into 32 bits.
    """
    if block_tokens <= 0:
        raise ValueError(f"block_tokens must be positive, got {block_tokens}")
    return chain_hashes(token_bytes(token_ids), 4 * block_tokens, seed)


def pack_hashes(hashes: Iterable[int]) -> bytes:
    """Hashes as consecutive little-endian u64, as they travel on the bus."""
    packed = array("Q", hashes)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_hashes(data: bytes) -> "array[int]":
    """Inverse of `pack_hashes`.

    Raises:
        ValueError: the length is not a multiple of 8.
    """
    hashes = array("Q")
    hashes.frombytes(data)
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes
