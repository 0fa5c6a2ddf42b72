"""Puts live and replayed batches of one publisher in order, and tells loss and restarts apart.

Publishers number their batches from 0 in each life of the engine, keep the last ones for replay,
and say nothing about who they are. So every replay starts at batches already seen: if they come
back with their time stamps, the numbers mean the same life; if not, it is another life, or too much
was missed to know what the engine still holds. Pure: returns what to do as values.
"""

from typing import Final, Generic, Literal, Protocol, TypeVar

import msgspec

_MAX_ATTEMPTS: Final = 3
# Batches to compare. Several, because the first of a new life may have been taken for the old one.
_COMPARED: Final = 32


class Stamped(Protocol):
    @property
    def ts(self) -> float: ...


Item = TypeVar("Item", bound=Stamped)


class Deliver(msgspec.Struct, Generic[Item], frozen=True):
    """The next batch, in order."""

    item: Item


class Ask(msgspec.Struct, frozen=True):
    """Request a replay from `start`; replaces any request that is still running."""

    start: int


class Reset(msgspec.Struct, frozen=True):
    """What was delivered so far no longer describes the engine."""

    reason: Literal["restart", "gap"]


class Missing(msgspec.Struct, frozen=True):
    """`count` batches before the first one are not to be had; content starts incomplete."""

    count: int


Action = Deliver[Item] | Ask | Reset | Missing


class SequenceMerger(Generic[Item]):
    """Order of one publisher's batches.

    Args:
        can_replay: the publisher has a replay endpoint.
        max_waiting: batches kept while a gap before them is being filled.
    """

    def __init__(self, *, can_replay: bool, max_waiting: int = 20_000) -> None:
        self._can_replay = can_replay
        self._max_waiting = max_waiting
        self._duplicates = 0
        self._asking = False
        self._verified = True  # the running replay is of the life that is followed
        self._progress = False  # it delivered something
        self._attempts = 0  # replays in a row without progress
        self._last_live = -1
        self._forget()

    def _forget(self) -> None:
        self._next = 0
        self._delivered: dict[int, float] = {}  # number -> time stamp, the last ones
        self._newest_ts = float("-inf")
        self._waiting: dict[int, Item] = {}

    @property
    def asking(self) -> bool:
        """A replay is wanted; False also makes one that still runs pointless."""
        return self._asking

    def take_duplicates(self) -> int:
        """Batches that came both ways since the last call."""
        count, self._duplicates = self._duplicates, 0
        return count

    def begin(self) -> list[Action[Item]]:
        """To be called once subscribed: asks for what was published before."""
        return self._ask() if self._can_replay else []

    def recheck(self) -> list[Action[Item]]:
        """Looks for news that the live socket may have missed."""
        return self._ask() if self._can_replay and not self._asking else []

    def suspect(self) -> list[Action[Item]]:
        """Something else hints at a restart: checks whether the sequence goes on."""
        return self.recheck() if self._can_replay else self._reset("restart")

    def live(self, seq: int, item: Item) -> list[Action[Item]]:
        """A batch from the live socket."""
        # The live socket never repeats itself. Below what replay delivered, only a later time
        # stamp tells a new life from a batch that arrived both ways.
        if seq <= self._last_live or (seq < self._next and item.ts > self._newest_ts):
            actions = self._reset("restart")
            self._last_live = seq
            self._waiting[seq] = item
            return actions if self._asking else actions + self._advance()
        self._last_live = seq
        if seq < self._next:
            self._duplicates += 1
            return []
        self._waiting[seq] = item
        if not self._asking:
            return self._advance()
        return self._give_up() if len(self._waiting) > self._max_waiting else []

    def replayed(self, seq: int, item: Item) -> list[Action[Item]]:
        """A batch of the replay that was asked for last."""
        if seq < self._next:
            if self._delivered.get(seq, item.ts) != item.ts:
                return self._reset("restart")
            self._verified |= seq in self._delivered
            return []
        if not self._verified:
            return self._reset("gap")
        self._waiting[seq] = item
        delivered = self._drain()
        self._progress |= bool(delivered)
        return delivered

    def replay_ended(self, *, complete: bool) -> list[Action[Item]]:
        """The replay asked for last is over: by its end marker, or broken off."""
        self._asking = False
        delivered = self._drain() if self._verified else []
        if complete and self._verified and not self._waiting:
            self._attempts = 0
            return delivered
        self._attempts = 0 if self._progress else self._attempts + 1
        may_retry = self._attempts < _MAX_ATTEMPTS
        if not self._verified:
            return self._ask() if may_retry and not complete else self._reset("restart")
        # A complete replay can still have holes, where the engine's queue overflowed; what lies
        # before the first batch of all is no hole, but gone.
        is_gone = complete and not self._delivered
        if not self._waiting or (may_retry and not is_gone):
            return delivered + self._ask()
        return delivered + self._give_up()

    def _advance(self) -> list[Action[Item]]:
        """Delivers what is in order, and sees to what is missing before the rest."""
        actions = self._drain()
        if not self._waiting:
            return actions
        return actions + (self._ask() if self._can_replay else self._give_up())

    def _drain(self) -> list[Action[Item]]:
        delivered: list[Action[Item]] = []
        while (item := self._waiting.pop(self._next, None)) is not None:
            delivered.append(Deliver(item))
            self._delivered[self._next] = item.ts
            self._delivered.pop(self._next - _COMPARED, None)
            self._next += 1
            self._newest_ts = max(self._newest_ts, item.ts)
        return delivered

    def _ask(self) -> list[Action[Item]]:
        self._asking = True
        self._verified = not self._delivered
        self._progress = False
        return [Ask(min(self._delivered, default=self._next))]

    def _reset(self, reason: Literal["restart", "gap"]) -> list[Action[Item]]:
        self._forget()
        self._last_live = -1
        self._attempts = 0
        return [Reset(reason), *(self._ask() if self._can_replay else [])]

    def _give_up(self) -> list[Action[Item]]:
        """Goes on behind a gap that cannot be filled."""
        self._asking = False
        first = min(self._waiting)
        lost: Action[Item] = Missing(first - self._next)
        if self._delivered:
            lost = Reset("gap")
            self._delivered.clear()
        self._next = first
        return [lost, *self._advance()]
