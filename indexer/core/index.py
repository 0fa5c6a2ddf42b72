"""Exact ownership: which source holds which block, per tier.

A source is a small integer standing for one (instance, rank); the caller keeps the mapping. Per
tier, a block's holders are one Python integer used as a bit set, so matching a prompt costs one
dictionary look-up and one AND for each block, whatever the number of sources. Multiplicity is the
relay's business: an owner announces a block when it first holds it and withdraws it with its last
copy, so here a (source, tier, block) is held or not.
"""

from collections.abc import Iterable, Iterator, Sequence

from indexer.core.tiers import Tier, digest_term

# (source -> depth) in blocks, per tier; a source with depth 0 is absent.
Depths = dict[int, int]


class PrefixIndex:
    """Maps block hash -> set of sources, for every tier.

    Sources are opened before use and closed when gone; a closed number is used again.
    """

    def __init__(self) -> None:
        self._holders: tuple[dict[int, int], ...] = tuple({} for _ in Tier)
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

    def register(self, source: int, tier: Tier, hashes: Iterable[int]) -> int:
        """Notes that `source` holds `hashes` in `tier`; returns how many were news."""
        self._require(source)
        holders, bit, digest, added = self._holders[tier], 1 << source, self._digests[source], 0
        for block in hashes:
            held_by = holders.get(block, 0)
            if not held_by & bit:
                holders[block] = held_by | bit
                digest ^= digest_term(tier, block)
                added += 1
        self._digests[source] = digest
        self._counts[source][tier] += added
        return added

    def evict(self, source: int, tier: Tier, hashes: Iterable[int]) -> int:
        """Notes that `source` no longer holds `hashes` in `tier`; returns how many it held."""
        self._require(source)
        holders, bit, digest, removed = self._holders[tier], 1 << source, self._digests[source], 0
        for block in hashes:
            held_by = holders.get(block, 0)
            if held_by & bit:
                if held_by == bit:
                    del holders[block]
                else:
                    holders[block] = held_by ^ bit
                digest ^= digest_term(tier, block)
                removed += 1
        self._digests[source] = digest
        self._counts[source][tier] -= removed
        return removed

    def clear(self, source: int, tier: Tier | None = None) -> int:
        """Drops everything `source` holds, in one tier or in all; returns how many blocks."""
        self._require(source)
        tiers = list(Tier) if tier is None else [tier]
        return sum(self.evict(source, each, list(self.held(source, each))) for each in tiers)

    def held(self, source: int, tier: Tier) -> Iterator[int]:
        """The blocks of one source in one tier; not to be consumed across changes."""
        bit = 1 << source
        if not self._counts[source][tier]:
            return iter(())
        return (block for block, held_by in self._holders[tier].items() if held_by & bit)

    def match(self, hashes: Sequence[int]) -> tuple[Depths, ...]:
        """How deep each source holds the chain `hashes`, in blocks from position 0.

        Element t of the result counts blocks held in tier t or in a faster one, so the depths of
        a source never fall from tier to tier. A block missing in the middle ends the depth there.
        """
        result: list[Depths] = []
        tables: list[dict[int, int]] = []
        for holders in self._holders:
            if holders or not result:
                tables.append(holders)
                result.append(self._depths(hashes, tables))
            else:
                result.append(result[-1])
        return tuple(result)

    def _depths(self, hashes: Sequence[int], tables: list[dict[int, int]]) -> Depths:
        depths: Depths = {}
        alive = self._open
        first, rest = tables[0].get, tables[1:]
        for position, block in enumerate(hashes):
            held_by = first(block, 0)
            for table in rest:
                held_by |= table.get(block, 0)
            still = alive & held_by
            if still != alive:
                if position:
                    _note(depths, alive ^ still, position)
                alive = still
                if not alive:
                    return depths
        if hashes:
            _note(depths, alive, len(hashes))
        return depths

    def count(self, source: int, tier: Tier | None = None) -> int:
        """(tier, block) pairs held by the source."""
        counts = self._counts[source]
        return sum(counts) if tier is None else counts[tier]

    def digest(self, source: int) -> int:
        """XOR of the digest terms of all the source holds."""
        return self._digests[source]

    def blocks(self, tier: Tier) -> int:
        """Distinct blocks known in a tier."""
        return len(self._holders[tier])

    def _require(self, source: int) -> None:
        if source < 0 or not self._open >> source & 1:
            raise KeyError(f"source {source} is not open")


def _note(depths: Depths, sources: int, depth: int) -> None:
    while sources:
        lowest = sources & -sources
        depths[lowest.bit_length() - 1] = depth
        sources ^= lowest
