"""The paged prefix cache of one engine: which blocks it holds, for whom, and what goes first.

A block is in one of three states. *Private*: it belongs to one request and has no name yet.
*Referenced*: published under its chained hash and used by at least one request. *Idle*: published,
used by nobody, kept until room is needed. Whoever holds a block holds all blocks before it, so

- both the referenced and the cached set are closed under taking prefixes, and the longest cached
  prefix of a chain can be found by bisection;
- releasing a chain tail first puts every child ahead of its parent in the idle queue, so taking
  the oldest idle block always takes a leaf: least recently used, leaves first, in O(1).
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec


class Stored(msgspec.Struct, frozen=True):
    """Blocks became available under these hashes, which follow each other in one chain."""

    hashes: tuple[int, ...]
    parent_hash: int | None  # the block before the first; None at position 0
    start_block_index: int  # position of the first hash in its chain
    request_id: str  # whose tokens they are


class Removed(msgspec.Struct, frozen=True):
    """Blocks were evicted, oldest first."""

    hashes: tuple[int, ...]


class Cleared(msgspec.Struct, frozen=True):
    """Every block was dropped."""


KvEvent = Stored | Removed | Cleared


class BlockCache:
    """Blocks of one engine with reference counts and leaf-first LRU eviction.

    Hashes are chained: equal hashes mean equal blocks behind equal prefixes. Every sequence of
    hashes passed in is one chain from position 0. One published copy is kept for each hash.

    Args:
        capacity_blocks: blocks the KV memory holds, at least 1.

    Raises:
        ValueError: `capacity_blocks` is below 1.
    """

    def __init__(self, capacity_blocks: int) -> None:
        if capacity_blocks < 1:
            raise ValueError(f"capacity_blocks must be at least 1, got {capacity_blocks}")
        self.capacity_blocks = capacity_blocks
        self._references: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._private_blocks = 0
        self._events: list[KvEvent] = []

    @property
    def used_blocks(self) -> int:
        """Blocks that requests hold; idle blocks do not count."""
        return len(self._references) + self._private_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that can be had, empty or by eviction."""
        return self.capacity_blocks - self.used_blocks

    def holds(self, block_hash: int) -> bool:
        return block_hash in self._references or block_hash in self._idle

    def held_hashes(self) -> set[int]:
        """Hashes of all published blocks."""
        return {*self._references, *self._idle}

    def cached_prefix(self, hashes: Sequence[int], limit: int) -> int:
        """Number of leading blocks of the chain that are held, at most `limit`."""
        return _first_missing(self.holds, hashes, 0, min(limit, len(hashes)))

    def acquire(self, hashes: Sequence[int], shared: int, private: int) -> bool:
        """Takes the first `shared` blocks of the chain and `private` fresh ones, or nothing.

        The shared blocks must be held (see `cached_prefix`). Returns False, and changes nothing,
        when there are not enough free blocks.

        Raises:
            KeyError: one of the shared blocks is not held.
        """
        referenced = _first_missing(self._references.__contains__, hashes, 0, shared)
        if shared - referenced + private > self.free_blocks:
            return False
        for name in hashes[:referenced]:
            self._references[name] += 1
        for name in hashes[referenced:shared]:
            del self._idle[name]
            self._references[name] = 1
        return self.allocate(private)

    def allocate(self, private: int) -> bool:
        """Takes `private` fresh blocks, evicting as needed; False, changing nothing: no room."""
        if private > self.free_blocks:
            return False
        self._evict(private - (self.free_blocks - len(self._idle)))
        self._private_blocks += private
        return True

    def publish(self, hashes: Sequence[int], start: int, stop: int, request_id: str) -> None:
        """Names the caller's next private blocks: positions `start` to `stop` of its chain.

        The caller holds positions 0 to `start` and at least `stop - start` private blocks. Where a
        block of that name is already held, the caller gets a reference to it and its own copy
        becomes free.

        Raises:
            ValueError: more blocks are named than are private.
        """
        if stop - start > self._private_blocks:
            raise ValueError(f"{stop - start} blocks named, {self._private_blocks} are private")
        self._private_blocks -= stop - start
        known = _first_missing(self.holds, hashes, start, stop)
        for name in hashes[start:known]:
            self._idle.pop(name, None)
            self._references[name] = self._references.get(name, 0) + 1
        fresh = tuple(hashes[known:stop])
        if fresh:
            self._references.update(dict.fromkeys(fresh, 1))
            parent = hashes[known - 1] if known else None
            self._events.append(Stored(fresh, parent, known, request_id))

    def release(self, hashes: Sequence[int], shared: int, private: int) -> None:
        """Gives back the first `shared` blocks of the chain and `private` unnamed ones.

        Raises:
            KeyError: one of the shared blocks is not referenced.
            ValueError: more private blocks are given back than exist.
        """
        if private > self._private_blocks:
            raise ValueError(f"{private} blocks released, {self._private_blocks} are private")
        self._private_blocks -= private
        references, idle = self._references, self._idle
        for name in reversed(hashes[:shared]):
            count = references[name]
            if count > 1:
                references[name] = count - 1
            else:
                del references[name]
                idle[name] = None

    def clear(self) -> bool:
        """Drops all published blocks; False, changing nothing, while requests hold any."""
        if self.used_blocks:
            return False
        self._idle.clear()
        self._events.append(Cleared())
        return True

    def drain_events(self) -> list[KvEvent]:
        """Changes since the last call in order; removals precede the stores they made room for."""
        events, self._events = self._events, []
        return events

    def _evict(self, count: int) -> None:
        if count > 0:
            victims = tuple(self._idle.popitem(last=False)[0] for _ in range(count))
            self._events.append(Removed(victims))


def _first_missing(
    held: Callable[[int], bool], hashes: Sequence[int], start: int, stop: int
) -> int:
    """First position in [start, stop) that is not held, else `stop`; held blocks come first."""
    return bisect_left(hashes, True, start, stop, key=lambda name: not held(name))
