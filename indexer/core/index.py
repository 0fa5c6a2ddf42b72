"""Exact ownership: which source holds which block, per tier.

A source is a small integer standing for one (instance, rank); the caller keeps the mapping. Each
known block has one place in a table and there the number of its holder set. Changes and questions
come as whole batches of hashes and are done a batch at a time. Multiplicity is the relay's
business: an owner announces a block when it first holds it and withdraws it with its last copy,
so here a (source, tier, block) is held or not.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from indexer.core.block_table import ABSENT, BlockTable, Hashes, Positions, Values
from indexer.core.holder_sets import EMPTY, HolderSets
from indexer.core.tiers import Tier, digest_multiplier, digest_term

# source -> depth in blocks; a source with depth 0 is absent.
Depths = dict[int, int]

HashBatch = Sequence[int] | bytes | Hashes

# First probe of a match, in blocks; later ones are twice as long each. A prompt that nobody
# holds beyond its head costs one short probe.
_FIRST_PROBE_BLOCKS: Final = 512


# Batches of this size cost about the same either way. Decoding engines send a few blocks a step.
_FEW_BLOCKS: Final = 8

_WIRE_DTYPE: Final = np.dtype("<u8")


class PrefixIndex:
    """Maps block hash -> set of sources, for every tier.

    Sources are opened before use and closed when gone; a closed number is used again. Hashes come
    as little-endian u64 bytes, as an array of unsigned 64-bit numbers, or as a list of integers.
    Hash 0 names no block: it is passed over when registered and must not be asked for.
    """

    def __init__(self, few_blocks: int = _FEW_BLOCKS) -> None:
        """Batches of up to `few_blocks` are changed block by block, larger ones at once."""
        self._few_blocks = few_blocks
        self._table = BlockTable()
        self._sets = HolderSets()
        self._counts: list[list[int]] = []  # source -> blocks held per tier
        self._digests: list[int] = []
        self._free: list[int] = []
        self._open = 0  # bit set of open sources

    def open_source(self) -> int:
        """A number for a new, empty source."""
        if self._free:
            source = self._free.pop()
        else:
            source = len(self._counts)
            self._counts.append([0] * len(Tier))
            self._digests.append(0)
        self._open |= 1 << source
        return source

    def close_source(self, source: int) -> None:
        """Forgets the source and all it held."""
        self._require(source)
        self.clear(source)
        self._open ^= 1 << source
        self._free.append(source)

    def register(self, source: int, tier: Tier, hashes: HashBatch) -> int:
        """Notes that `source` holds `hashes` in `tier`; returns how many were news."""
        self._require(source)
        batch = as_hashes(hashes)
        if len(batch) <= self._few_blocks:
            added = self._change_few(source, tier, batch, self._sets.with_member)
            self._counts[source][tier] += added
            return added
        batch = _distinct(batch)
        positions = self._table.find(batch)
        present = positions != ABSENT
        if present.all():
            added = self._change(source, tier, batch, positions, self._sets.with_member)
        else:
            added = self._insert(source, tier, batch[~present])
            if present.any():
                known = batch[present]
                again = self._table.find(known)
                added += self._change(source, tier, known, again, self._sets.with_member)
        self._counts[source][tier] += added
        return added

    def evict(self, source: int, tier: Tier, hashes: HashBatch) -> int:
        """Notes that `source` no longer holds `hashes` in `tier`; returns how many it held."""
        self._require(source)
        batch = as_hashes(hashes)
        if len(batch) <= self._few_blocks:
            removed = self._change_few(source, tier, batch, self._sets.without_member)
            self._counts[source][tier] -= removed
            return removed
        batch = _distinct(batch)
        positions = self._table.find(batch)
        present = positions != ABSENT
        if not present.all():
            batch, positions = batch[present], positions[present]
        if not len(batch):
            return 0
        removed = self._change(source, tier, batch, positions, self._sets.without_member)
        self._counts[source][tier] -= removed
        return removed

    def clear(self, source: int, tier: Tier | None = None) -> int:
        """Drops everything `source` holds, in one tier or in all; returns how many blocks."""
        self._require(source)
        tiers = list(Tier) if tier is None else [tier]
        return sum(self.evict(source, each, self._held(source, each)) for each in tiers)

    def held(self, source: int, tier: Tier) -> Iterator[int]:
        """The blocks of one source in one tier."""
        return iter(self._held(source, tier).tolist())

    def held_packed(self, source: int, tier: Tier) -> bytes:
        """The same as consecutive little-endian u64."""
        return self._held(source, tier).astype("<u8", copy=False).tobytes()

    def match(self, hashes: HashBatch) -> tuple[Depths, ...]:
        """How deep each source holds the chain `hashes`, in blocks from position 0.

        Element t of the result counts blocks held in tier t or in a faster one, so the depths of
        a source never fall from tier to tier. A block missing in the middle ends the depth there.
        """
        runs, stops = self._runs(as_hashes(hashes))
        gpu = self._depths(runs, stops, 0)
        if not self._sets.beyond_gpu:
            return (gpu, gpu, gpu, gpu)
        return (gpu, *(self._depths(runs, stops, tier) for tier in (1, 2, 3)))

    def count(self, source: int, tier: Tier | None = None) -> int:
        """(tier, block) pairs held by the source."""
        counts = self._counts[source]
        return sum(counts) if tier is None else counts[tier]

    def digest(self, source: int) -> int:
        """XOR of the digest terms of all the source holds."""
        return self._digests[source]

    def blocks(self, tier: Tier) -> int:
        """Distinct blocks known in a tier."""
        return self._sets.blocks_in(tier)

    def _runs(self, chain: Hashes) -> tuple[list[int], list[int]]:
        """Holder sets along the chain: run j has set `runs[j]` and ends before `stops[j]`."""
        length = len(chain)
        if not length:
            return [], []
        sets = self._table.look_up(chain[:_FIRST_PROBE_BLOCKS])
        while len(sets) < length and sets[-1]:
            more = self._table.look_up(chain[len(sets) : 3 * len(sets)])
            sets = np.concatenate([sets, more])
        ends = (sets[1:] != sets[:-1]).nonzero()[0]
        if not len(ends):
            return [int(sets[0])], [len(sets)]
        return [*sets[ends].tolist(), int(sets[-1])], [*(ends + 1).tolist(), len(sets)]

    def _depths(self, runs: list[int], stops: list[int], tier: int) -> Depths:
        depths: Depths = {}
        masks, alive, start = self._sets.masks, self._open, 0
        for set_id, stop in zip(runs, stops, strict=True):
            held_by = masks[set_id][0]
            for slower in range(1, tier + 1):
                held_by |= masks[set_id][slower]
            still = alive & held_by
            if still != alive:
                if start:
                    _note(depths, alive ^ still, start)
                alive = still
                if not alive:
                    return depths
            start = stop
        if start:
            _note(depths, alive, start)
        return depths

    def _change_few(
        self, source: int, tier: Tier, batch: Hashes, change: Callable[[int, int, Tier], int]
    ) -> int:
        changed = 0
        for block in batch.tolist():
            old = self._table.get(block) if block else EMPTY
            new = change(old, source, tier) if block else EMPTY
            if new != old:
                self._table.put(block, new)
                self._sets.add_blocks(new, 1)
                self._sets.add_blocks(old, -1)
                self._digests[source] ^= digest_term(tier, block)
                changed += 1
        return changed

    def _insert(self, source: int, tier: Tier, news: Hashes) -> int:
        set_id = self._sets.with_member(EMPTY, source, tier)
        self._table.insert(news, set_id)
        self._sets.add_blocks(set_id, len(news))
        self._fold(source, tier, news)
        return len(news)

    def _change(
        self,
        source: int,
        tier: Tier,
        batch: Hashes,
        positions: Positions,
        change: Callable[[int, int, Tier], int],
    ) -> int:
        """Moves present blocks to the changed sets; returns how many really changed."""
        old = self._table.values_at(positions)
        kinds, kind_of, sizes = _kinds(old)
        new_kinds = [change(kind, source, tier) for kind in kinds]
        changed_kinds = [new != kind for new, kind in zip(new_kinds, kinds, strict=True)]
        if not any(changed_kinds):
            return 0
        for kind, new, size in zip(kinds, new_kinds, sizes, strict=True):
            if kind != new:
                self._sets.add_blocks(new, size)
        new_values = np.array(new_kinds, np.uint32)[kind_of]
        if all(changed_kinds):
            self._fold(source, tier, batch)
            self._table.set_values(positions, new_values)
        else:
            changed = np.array(changed_kinds)[kind_of]
            self._fold(source, tier, batch[changed])
            self._table.set_values(positions[changed], new_values[changed])
        for kind, new, size in zip(kinds, new_kinds, sizes, strict=True):
            if kind != new:
                self._sets.add_blocks(kind, -size)
        return sum(n for n, moved in zip(sizes, changed_kinds, strict=True) if moved)

    def _fold(self, source: int, tier: Tier, hashes: Hashes) -> None:
        terms = hashes * np.uint64(digest_multiplier(tier))
        self._digests[source] ^= int(np.bitwise_xor.reduce(terms))

    def _held(self, source: int, tier: Tier) -> Hashes:
        if not self._counts[source][tier]:
            return np.zeros(0, np.uint64)
        return self._table.keys_with(self._sets.having(source, tier))

    def _require(self, source: int) -> None:
        if source < 0 or not self._open >> source & 1:
            raise KeyError(f"source {source} is not open")


def as_hashes(hashes: HashBatch) -> Hashes:
    """A batch of hashes as an array, without copying where the buffer allows it.

    Raises:
        ValueError: bytes whose length is not a multiple of 8.
    """
    if isinstance(hashes, bytes):
        return np.frombuffer(hashes, _WIRE_DTYPE)
    if isinstance(hashes, np.ndarray):
        return hashes
    return np.array(hashes, np.uint64)


def _distinct(batch: Hashes) -> Hashes:
    """The batch without repetitions and without 0."""
    if not len(batch):
        return batch
    ordered = np.sort(batch)
    if ordered[0] and not (ordered[1:] == ordered[:-1]).any():
        return batch
    return np.unique(ordered[ordered != 0])


def _kinds(values: Values) -> tuple[list[int], Positions, list[int]]:
    """Different values, which of them each element is, and how many elements each has."""
    first = int(values[0])
    if (values == first).all():
        return [first], np.zeros(len(values), np.int64), [len(values)]
    kinds, kind_of, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return kinds.tolist(), kind_of, sizes.tolist()


def _note(depths: Depths, sources: int, depth: int) -> None:
    while sources:
        lowest = sources & -sources
        depths[lowest.bit_length() - 1] = depth
        sources ^= lowest
