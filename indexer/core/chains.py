"""How tokens and media items become a chain of block hashes: one rule for relays and routers.

The first own block is seeded with `namespace_hash(model, lora, cache_salt,
secret)`, without media. A media item changes the chain at the own block in which its placeholder
begins: before that block is hashed, the seed (the hash of the block before it) becomes
`fold_media(seed, identity)`, once for each item that begins there, in order. Text before the first
image is thus shared by prompts with different images.
"""

from collections.abc import Sequence

from indexer.core.blocks import chain_hashes

MediaStart = tuple[int, str]  # (token offset at which a media item begins, its identity)


def fold_media(seed: int, identity: str) -> int:
    """Seed of the block in which a media item begins, from the seed it would have without.

    Raises:
        ValueError: the identity is empty.
    """
    raw = identity.encode()
    return chain_hashes(raw, len(raw), seed)[0]


def extend_chain(
    seed: int, tail: bytes, data: bytes, media: Sequence[MediaStart], block_bytes: int
) -> tuple[list[int], int, bytes]:
    """Continues a chain by the tokens in `data`.

    Args:
        seed: hash of the last full block (with the media folded in that begin in `tail`).
        tail: tokens since then, less than one block, as `token_bytes`.
        data: the tokens that follow, as `token_bytes`.
        media: items that begin in `data`, by token offset in it, ascending.
        block_bytes: bytes per own block.

    Returns:
        Hashes of the blocks completed, then `seed` and `tail` after `data`.
    """
    stream = tail + data
    if not media and len(stream) < block_bytes:
        return [], seed, stream
    hashes: list[int] = []
    done = 0
    for offset, identity in media:
        start = (len(tail) + 4 * offset) // block_bytes * block_bytes
        hashes += chain_hashes(stream[done:start], block_bytes, seed)
        seed = fold_media(hashes[-1] if start > done else seed, identity)
        done = start
    full = len(stream) // block_bytes * block_bytes
    hashes += chain_hashes(stream[done:full], block_bytes, seed)
    return hashes, hashes[-1] if full > done else seed, stream[full:]
