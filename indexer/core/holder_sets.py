"""Interned sets of holders: few different sets hold very many blocks.

A set is four bit sets of sources, one for each tier. Blocks carry the small number of their set;
0 is the empty set. A set that no block has any more is forgotten and its number used again.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from indexer.core.tiers import Tier

Masks = tuple[int, int, int, int]  # per tier, bit s for source s
EMPTY: Final = 0


class HolderSets:
    """Numbers for holder sets, with a count of the blocks that have each."""

    def __init__(self) -> None:
        nobody: Masks = (0, 0, 0, 0)
        self.masks: list[Masks] = [nobody]
        self.beyond_gpu = 0  # sets with a tier other than gpu
        self._ids: dict[Masks, int] = {nobody: EMPTY}
        self._blocks: list[int] = [0]
        self._free: list[int] = []

    def with_member(self, set_id: int, source: int, tier: Tier) -> int:
        """Number of the set plus one holder; the set itself if it is one already."""
        return self._changed(set_id, tier, self.masks[set_id][tier] | 1 << source)

    def without_member(self, set_id: int, source: int, tier: Tier) -> int:
        """Number of the set less one holder; the set itself if it is none."""
        return self._changed(set_id, tier, self.masks[set_id][tier] & ~(1 << source))

    def add_blocks(self, set_id: int, blocks: int) -> None:
        """So many more blocks, or fewer, have this set."""
        if set_id == EMPTY:
            return
        self._blocks[set_id] += blocks
        if not self._blocks[set_id]:
            self._forget(set_id)

    def having(self, source: int, tier: Tier) -> npt.NDArray[np.bool_]:
        """For each set number, whether `source` holds in `tier`."""
        bit = 1 << source
        members = (bool(masks[tier] & bit) for masks in self.masks)
        return np.fromiter(members, np.bool_, len(self.masks))

    def blocks_in(self, tier: Tier) -> int:
        """Distinct blocks that anybody holds in a tier."""
        return sum(n for masks, n in zip(self.masks, self._blocks, strict=True) if masks[tier])

    def __len__(self) -> int:
        return len(self._ids) - 1

    def _changed(self, set_id: int, tier: Tier, mask: int) -> int:
        old = self.masks[set_id]
        if old[tier] == mask:
            return set_id
        changed = list(old)
        changed[tier] = mask
        masks: Masks = (changed[0], changed[1], changed[2], changed[3])
        known = self._ids.get(masks)
        return self._intern(masks) if known is None else known

    def _intern(self, masks: Masks) -> int:
        if self._free:
            set_id = self._free.pop()
            self.masks[set_id] = masks
        else:
            set_id = len(self.masks)
            self.masks.append(masks)
            self._blocks.append(0)
        self._ids[masks] = set_id
        self.beyond_gpu += any(masks[1:])
        return set_id

    def _forget(self, set_id: int) -> None:
        masks = self.masks[set_id]
        del self._ids[masks]
        self.beyond_gpu -= any(masks[1:])
        self.masks[set_id] = (0, 0, 0, 0)
        self._free.append(set_id)
