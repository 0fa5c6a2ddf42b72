"""What one engine rank holds: the exact multiset of its blocks, under our own block hashes.

Engines name blocks by hashes of their own and at their own block size. Each stored engine block
becomes a node that knows which of our blocks it completes:

- engine block = our block: one; engine block a multiple of ours: several;
- engine block a fraction of ours (page size 1): none, until the page that completes ours. Our block
  is held while every page in it is.

Engines announce and remove single physical copies, so nodes count copies per tier; a block is gone
with its last copy. Different nodes may complete the same own block; these are counted as well.

How tokens and media become hashes is in `chains`.
"""

from collections import Counter
from collections.abc import Sequence

from indexer.core.blocks import namespace_hash, pack_hashes, token_bytes
from indexer.core.chains import MediaStart, extend_chain
from indexer.core.engine_events import (
    Cleared,
    EngineEvent,
    EngineHash,
    Removed,
    Stored,
)
from indexer.core.events import Clear, Evict, Op, Register
from indexer.core.orphans import Orphan, Parking
from indexer.core.tiers import WIRE_NAMES, Tier, digest_term

_COPY_BITS = 32  # copies of all tiers in one int, mostly a small one that needs no memory
_COPY_MASK = (1 << _COPY_BITS) - 1


class _Space:
    """Nodes of one KV group at one block size, by the engine's hash."""

    __slots__ = ("block_size", "nodes")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.nodes: dict[EngineHash, _Node] = {}


class _Node:
    """One engine block: what it names, and how many copies of it lie where."""

    __slots__ = ("children", "complete", "copies", "key", "own", "parent", "seed", "space", "tail")

    def __init__(self, space: _Space, key: EngineHash, seed: int) -> None:
        self.space = space
        self.key = key
        self.own: list[int] = []  # own blocks that end within this engine block
        self.seed = seed  # of what follows, see extend_chain
        self.tail = b""
        # Only within an own block that spans several engine blocks:
        self.parent: _Node | None = None
        self.children: set[_Node] | None = None
        self.copies = 0  # _COPY_BITS for each tier
        self.complete = 0  # bit per tier: held from the start of the own block up to here

    def holds(self, tier: Tier) -> int:
        return self.copies >> (_COPY_BITS * tier) & _COPY_MASK


class _Tally:
    """Own blocks held per tier, with the number of nodes that hold each, and the changes so far."""

    def __init__(self) -> None:
        self.holders: tuple[dict[int, int], ...] = ({}, {}, {}, {})
        self.count = 0
        self.digest = 0
        self._changes: list[tuple[type[Register | Evict], Tier, list[int]]] = []

    def add(self, tier: Tier, own: int) -> None:
        holders = self.holders[tier]
        before = holders.get(own, 0)
        holders[own] = before + 1
        if not before:
            self.count += 1
            self.digest ^= digest_term(tier, own)
            self._log(Register, tier, own)

    def drop(self, tier: Tier, own: int) -> None:
        holders = self.holders[tier]
        left = holders[own] - 1
        if left:
            holders[own] = left
            return
        del holders[own]
        self.count -= 1
        self.digest ^= digest_term(tier, own)
        self._log(Evict, tier, own)

    def _log(self, kind: type[Register | Evict], tier: Tier, own: int) -> None:
        if self._changes:
            last_kind, last_tier, hashes = self._changes[-1]
            if last_kind is kind and last_tier is tier:
                hashes.append(own)
                return
        self._changes.append((kind, tier, [own]))

    def take_ops(self) -> list[Op]:
        changes, self._changes = self._changes, []
        return [kind(WIRE_NAMES[tier], pack_hashes(hashes)) for kind, tier, hashes in changes]


class HeldBlocks:
    """The content of one engine rank; turns engine events into register and evict operations.

    Args:
        block_tokens: tokens per own block, positive.
        model: served model name, part of the namespace.
        secret: deployment secret, part of the namespace.
        max_parked: bound on the blocks that wait for an unknown parent.

    Raises:
        ValueError: `block_tokens` is not positive.
    """

    def __init__(
        self, block_tokens: int, model: str, *, secret: str = "", max_parked: int = 65_536
    ) -> None:
        if block_tokens <= 0:
            raise ValueError(f"block_tokens must be positive, got {block_tokens}")
        self.block_tokens = block_tokens
        self.skipped: Counter[str] = Counter()  # reason -> events or blocks without effect
        self._model = model
        self._secret = secret
        self._max_parked = max_parked
        self._unchained_groups: set[int] = set()
        self.reset()

    def reset(self) -> None:
        """Forgets all content, without operations: the start of a new epoch."""
        self._groups: dict[int, list[_Space]] = {}
        self._tally = _Tally()
        self._parking = Parking(self._max_parked)

    @property
    def count(self) -> int:
        """(tier, own block) pairs held."""
        return self._tally.count

    @property
    def digest(self) -> int:
        """XOR of the digest terms of all pairs held."""
        return self._tally.digest

    @property
    def parked(self) -> int:
        """Engine blocks waiting for an unknown parent."""
        return self._parking.blocks

    def apply(self, event: EngineEvent) -> list[Op]:
        """Takes over one event; returns what it changed, in order, and nothing else."""
        match event:
            case Stored():
                self._store(event)
            case Removed():
                self._remove(event)
            case Cleared():
                had_content = self.count > 0
                self.reset()
                return [Clear()] if had_content else []
        return self._tally.take_ops()

    def snapshot_ops(self, max_bytes: int) -> list[Register]:
        """All that is held, in registers of at most `max_bytes` (at least 8) of hashes each."""
        step = max_bytes // 8
        chunks = []
        for tier, holders in zip(Tier, self._tally.holders, strict=True):
            hashes = list(holders)
            chunks += [
                Register(WIRE_NAMES[tier], pack_hashes(hashes[start : start + step]))
                for start in range(0, len(hashes), step)
            ]
        return chunks

    def _store(self, event: Stored) -> None:
        if not event.chained:
            self._unchained_groups.add(event.group)
            self.skipped["group"] += 1
        elif event.token_ids:
            self._store_tokens(event)
        else:
            self._store_placeholder(event)

    def _store_placeholder(self, event: Stored) -> None:
        """Hashes without tokens: known from an earlier store, or not usable."""
        for key in event.hashes:
            node = self._find(event.group, key)
            if node is None:
                self.skipped["unresolved"] += 1
            else:
                self._gain(node, event.tier)

    def _store_tokens(self, event: Stored) -> None:
        size = event.block_size
        if size <= 0 or len(event.token_ids) != len(event.hashes) * size:
            self.skipped["length"] += 1
        elif size % self.block_tokens and self.block_tokens % size:
            self.skipped["block_size"] += 1
        else:
            try:
                data = token_bytes(event.token_ids)
            except OverflowError:
                self.skipped["token_range"] += 1
            else:
                self._place_or_park(event, data)

    def _place_or_park(self, event: Stored, data: bytes) -> None:
        if self._place(event, data):
            self._adopt(self._parking.adopt(event.group, event.hashes))
        else:
            self.skipped["orphan"] += 1
            self.skipped["orphan_dropped"] += self._parking.park(event)

    def _adopt(self, waiting: list[Orphan]) -> None:
        """Places orphans whose parent is known now, and those that waited for these in turn."""
        adopted = []
        while waiting:
            orphan = waiting.pop()
            event = orphan.event
            self._place(event, token_bytes(event.token_ids))
            waiting += self._parking.adopt(event.group, event.hashes)
            adopted.append(orphan)
        # Last, because a removed block is forgotten and could be another one's parent.
        for orphan in adopted:
            for key in orphan.removed.elements():
                self._remove_copy(orphan.event.group, key, orphan.event.tier)

    def _place(self, event: Stored, data: bytes) -> bool:
        """Adds one copy of each block; False when it is not known what comes before them."""
        space = self._space(event.group, event.block_size)
        # With the first block known, its chain is known too; what is before does not matter.
        before = self._before(event) or space.nodes.get(event.hashes[0])
        if before is None:
            return False
        self._add_copies(event, space, before, data)
        return True

    def _add_copies(self, event: Stored, space: _Space, before: _Node, data: bytes) -> None:
        step = 4 * event.block_size
        media = event.media
        for index, key in enumerate(event.hashes):
            node = space.nodes.get(key)
            if node is None:
                node = _Node(space, key, before.seed)
                inside = _within(media, index * event.block_size, event.block_size)
                self._derive(node, before, data[index * step : (index + 1) * step], inside)
                space.nodes[key] = node
            self._gain(node, event.tier)
            before = node

    def _derive(self, node: _Node, before: _Node, data: bytes, media: Sequence[MediaStart]) -> None:
        node.own, node.seed, node.tail = extend_chain(
            before.seed, before.tail, data, media, 4 * self.block_tokens
        )
        if before.tail:
            node.parent = before
            if before.children is None:
                before.children = set()
            before.children.add(node)

    def _before(self, event: Stored) -> _Node | None:
        """The block just before the event's range; for token 0 a node that only has the seed."""
        if event.parent is not None:
            return self._find(event.group, event.parent)
        seed = namespace_hash(
            self._model, lora=event.lora, cache_salt=event.cache_salt, secret=self._secret
        )
        return _Node(_Space(0), 0, seed)

    def _space(self, group: int, block_size: int) -> _Space:
        spaces = self._groups.setdefault(group, [])
        for space in spaces:
            if space.block_size == block_size:
                return space
        spaces.append(_Space(block_size))
        return spaces[-1]

    def _find(self, group: int, key: EngineHash) -> _Node | None:
        for space in self._groups.get(group, ()):
            node = space.nodes.get(key)
            if node is not None:
                return node
        return None

    def _remove(self, event: Removed) -> None:
        if event.group in self._unchained_groups:
            self.skipped["group"] += 1
            return
        for key in event.hashes:
            known = self._remove_copy(event.group, key, event.tier)
            if not known and not self._parking.withdraw(event.group, key, event.tier):
                self.skipped["unknown_removal"] += 1

    def _remove_copy(self, group: int, key: EngineHash, tier: Tier) -> bool:
        for space in self._groups.get(group, ()):
            node = space.nodes.get(key)
            if node is not None and node.holds(tier):
                self._lose(node, tier)
                return True
        return False

    def _gain(self, node: _Node, tier: Tier) -> None:
        is_first = not node.holds(tier)
        node.copies += 1 << (_COPY_BITS * tier)
        if is_first:
            self._settle(node, tier)

    def _lose(self, node: _Node, tier: Tier) -> None:
        node.copies -= 1 << (_COPY_BITS * tier)
        if not node.holds(tier):
            self._settle(node, tier)
        _release(node)

    def _settle(self, changed: _Node, tier: Tier) -> None:
        """Brings `complete` up to date from a changed node down to the end of its own block."""
        bit = 1 << tier
        waiting = [changed]
        while waiting:
            node = waiting.pop()
            begins = node.parent is None or node.parent.complete & bit
            complete = bit if begins and node.holds(tier) else 0
            if node.complete & bit == complete:
                continue
            node.complete ^= bit
            for own in node.own:
                (self._tally.add if complete else self._tally.drop)(tier, own)
            waiting.extend(node.children or ())


def _within(media: tuple[MediaStart, ...], start: int, length: int) -> Sequence[MediaStart]:
    """The items that begin within `length` tokens from `start`, by offset from there."""
    return media and [
        (at - start, identity) for at, identity in media if start <= at < start + length
    ]


def _release(node: _Node | None) -> None:
    """Forgets a node that nobody holds or continues, and ancestors that only it kept."""
    while node is not None and not node.copies and not node.children:
        del node.space.nodes[node.key]
        parent = node.parent
        if parent is not None and parent.children is not None:
            parent.children.discard(node)
        node = parent
