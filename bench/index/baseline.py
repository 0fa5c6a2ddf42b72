"""The simplest index there is, to measure against: a dictionary of integers to bit sets."""

from collections.abc import Iterable, Sequence


class DictIndex:
    """One tier, sources as bits; the same answers as `PrefixIndex` for one tier."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}

    def register(self, source: int, hashes: Iterable[int]) -> None:
        holders, bit = self._holders, 1 << source
        for block in hashes:
            holders[block] = holders.get(block, 0) | bit

    def evict(self, source: int, hashes: Iterable[int]) -> None:
        holders, mask = self._holders, ~(1 << source)
        for block in hashes:
            left = holders.get(block, 0) & mask
            if left:
                holders[block] = left
            else:
                holders.pop(block, None)

    def match(self, hashes: Sequence[int]) -> dict[int, int]:
        depths: dict[int, int] = {}
        alive, position = -1, 0
        for position, block in enumerate(hashes):
            still = alive & self._holders.get(block, 0)
            if still != alive and position:
                _note(depths, alive ^ still, position)
            alive = still
            if not alive:
                return depths
        _note(depths, alive, len(hashes))
        return depths


def _note(depths: dict[int, int], sources: int, depth: int) -> None:
    while sources > 0:
        lowest = sources & -sources
        depths[lowest.bit_length() - 1] = depth
        sources ^= lowest
