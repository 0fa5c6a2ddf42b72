"""A memory of this router's own decisions: which prefixes it has sent where.

It stands in for the index where none speaks: for prompts keyed by text, and while the control
plane is away. Bounded per instance by blocks, oldest use forgotten first.
"""

from collections import OrderedDict
from collections.abc import Sequence

from indexer.core.index import PrefixIndex
from indexer.core.tiers import Tier
from router.core.views import InstanceKey


class RecentPrefixes:
    """Prefixes sent to each instance, as a small index of its own."""

    def __init__(self, max_blocks_per_instance: int) -> None:
        self._max_blocks = max_blocks_per_instance
        self._index = PrefixIndex()
        self._sources: dict[InstanceKey, int] = {}
        self._keys: dict[int, InstanceKey] = {}
        self._used: dict[InstanceKey, OrderedDict[int, None]] = {}

    def note(self, key: InstanceKey, hashes: Sequence[int]) -> None:
        """A prompt with these blocks went to the instance."""
        kept = hashes[: self._max_blocks]
        used = self._used.get(key)
        if used is None:
            used = self._used[key] = OrderedDict()
            source = self._sources[key] = self._index.open_source()
            self._keys[source] = key
        # Deepest first, so that tails are forgotten before the heads they hang on.
        for block in reversed(kept):
            used[block] = None
            used.move_to_end(block)
        self._index.register(self._sources[key], Tier.GPU, kept)
        excess = len(used) - self._max_blocks
        if excess > 0:
            dropped = [used.popitem(last=False)[0] for _ in range(excess)]
            self._index.evict(self._sources[key], Tier.GPU, dropped)

    def match(self, hashes: Sequence[int]) -> dict[InstanceKey, int]:
        """Depth in blocks per instance; instances without any are absent."""
        depths = self._index.match(hashes)[Tier.GPU]
        return {self._keys[source]: depth for source, depth in depths.items()}

    def forget(self, key: InstanceKey) -> None:
        """The instance is gone or has lost its cache."""
        source = self._sources.pop(key, None)
        if source is not None:
            self._index.close_source(source)
            del self._keys[source], self._used[key]
