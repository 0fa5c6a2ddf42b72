"""Stores whose parent block is not known yet wait here, so that nothing is guessed or lost."""

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from indexer.core.engine_events import EngineHash, Stored
from indexer.core.tiers import Tier

_Key = TypeVar("_Key")


class Orphan:
    """A store whose parent is not known yet, and the copies of it removed since."""

    __slots__ = ("event", "removed")

    def __init__(self, event: Stored) -> None:
        self.event = event
        self.removed: Counter[EngineHash] = Counter()

    def withdraw(self, key: EngineHash, tier: Tier) -> bool:
        hashes = self.event.hashes
        if self.event.tier is not tier or hashes.count(key) <= self.removed[key]:
            return False
        self.removed[key] += 1
        return True

    def is_gone(self) -> bool:
        return self.removed.total() >= len(self.event.hashes)


class Parking:
    """Orphans in order of arrival, at most `limit` blocks of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.blocks = 0
        self._orphans: dict[Orphan, None] = {}
        self._by_parent: dict[tuple[int, EngineHash | None], list[Orphan]] = {}
        self._by_hash: dict[tuple[int, EngineHash], list[Orphan]] = {}

    def park(self, event: Stored) -> int:
        """Parks the event; returns how many older ones had to make room."""
        orphan = Orphan(event)
        self._orphans[orphan] = None
        self.blocks += len(event.hashes)
        self._by_parent.setdefault((event.group, event.parent), []).append(orphan)
        for key in set(event.hashes):
            self._by_hash.setdefault((event.group, key), []).append(orphan)
        dropped = 0
        while self.blocks > self._limit:
            self._forget(next(iter(self._orphans)))
            dropped += 1
        return dropped

    def withdraw(self, group: int, key: EngineHash, tier: Tier) -> bool:
        """One copy of `key` is gone; False when none is parked."""
        for orphan in self._by_hash.get((group, key), ()):
            if orphan.withdraw(key, tier):
                if orphan.is_gone():
                    self._forget(orphan)
                return True
        return False

    def adopt(self, group: int, parents: Iterable[EngineHash]) -> list[Orphan]:
        """Takes out the orphans of blocks that are known now."""
        if not self._orphans:
            return []
        found = [
            orphan
            for parent in dict.fromkeys(parents)
            for orphan in self._by_parent.get((group, parent), ())
        ]
        for orphan in found:
            self._forget(orphan)
        return found

    def _forget(self, orphan: Orphan) -> None:
        event = orphan.event
        del self._orphans[orphan]
        self.blocks -= len(event.hashes)
        _discard(self._by_parent, (event.group, event.parent), orphan)
        for key in set(event.hashes):
            _discard(self._by_hash, (event.group, key), orphan)


def _discard(index: dict[_Key, list[Orphan]], key: _Key, orphan: Orphan) -> None:
    index[key].remove(orphan)
    if not index[key]:
        del index[key]
