"""What this router has sent to each instance and not yet seen finished.

A lease is taken with the decision and released exactly once, whatever happens to the request.
Until its first token it counts as prefill work ahead; all its life it counts in the queue depth.
"""

from collections.abc import Sequence

from router.core.views import InstanceKey


class Lease:
    """One dispatched request's claim on one instance."""

    __slots__ = (
        "_book",
        "_load",
        "hashes",
        "key",
        "prefilling",
        "released",
        "streams",
        "uncached_tokens",
    )

    def __init__(
        self,
        book: "LeaseBook",
        load: "InstanceLoad",
        key: InstanceKey,
        uncached_tokens: float,
        hashes: Sequence[int],
        streams: bool,
    ) -> None:
        self._book = book
        self._load = load
        self.key = key
        self.uncached_tokens = uncached_tokens
        self.hashes = hashes
        self.streams = streams  # its first token will be seen
        self.prefilling = True
        self.released = False

    def prefill_done(self, now_s: float) -> None:
        """The first token came: the prompt's work is no longer ahead of anybody. Idempotent."""
        if self.prefilling and not self.released:
            self.prefilling = False
            self._load.prefill_done(self, now_s)

    def release(self, now_s: float) -> None:
        """The request is over, one way or another. Idempotent: counted once."""
        if self.released:
            return
        self.prefill_done(now_s)
        self.released = True
        self._book.forget(self)


class InstanceLoad:
    """The open leases of one instance."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.prefilling: dict[int, Lease] = {}  # by identity, oldest first
        self._pending_tokens = 0.0
        self._head_since_s = 0.0  # when the oldest prefill became the one being worked on

    def add(self, lease: Lease, now_s: float) -> None:
        if not self.prefilling:
            self._head_since_s = now_s
        self.in_flight += 1
        self.prefilling[id(lease)] = lease
        self._pending_tokens += lease.uncached_tokens

    def prefill_done(self, lease: Lease, now_s: float) -> None:
        if self.prefilling and next(iter(self.prefilling.values())) is lease:
            self._head_since_s = now_s
        del self.prefilling[id(lease)]
        self._pending_tokens = (
            self._pending_tokens - lease.uncached_tokens if self.prefilling else 0.0
        )

    def pending_tokens(self, now_s: float, prefill_tokens_per_s: float) -> float:
        """Prompt tokens sent and not prefilled.

        Engines take prompts in order, so the oldest one is taken as partly done: by the time it
        has been at the head, never by more than its own size. Of an answer that is not streamed
        the first token is never seen; once its prompt must be done, the next one's turn has come.
        """
        worked_off = (now_s - self._head_since_s) * prefill_tokens_per_s
        done = 0.0
        for lease in self.prefilling.values():
            done += min(lease.uncached_tokens, worked_off - done)
            if lease.streams or done >= worked_off:
                break
        return max(0.0, self._pending_tokens - done)


class LeaseBook:
    """All open leases of this router."""

    def __init__(self) -> None:
        self._loads: dict[InstanceKey, InstanceLoad] = {}
        self._idle = InstanceLoad()

    def acquire(
        self,
        key: InstanceKey,
        uncached_tokens: float,
        hashes: Sequence[int],
        now_s: float,
        *,
        streams: bool = True,
    ) -> Lease:
        """Opens a lease; the caller must release it on every path.

        `streams` says whether the answer will show its first token when it is there.
        """
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = InstanceLoad()
        lease = Lease(self, load, key, max(0.0, uncached_tokens), hashes, streams)
        load.add(lease, now_s)
        return lease

    def load(self, key: InstanceKey) -> InstanceLoad:
        """The instance's open leases; an idle load for one never used."""
        return self._loads.get(key, self._idle)

    def open_leases(self) -> int:
        return sum(load.in_flight for load in self._loads.values())

    def forget(self, lease: Lease) -> None:
        load = self._loads[lease.key]
        load.in_flight -= 1
        if not load.in_flight:
            del self._loads[lease.key]

    def pending_match(self, key: InstanceKey, hashes: Sequence[int]) -> int:
        """Blocks of `hashes` that prompts being prefilled there will leave in its cache.

        Their work is already counted as ahead, so to this request they are a wait, not a cost.
        """
        best = 0
        for lease in self.load(key).prefilling.values():
            theirs = lease.hashes
            # Hashes name whole prefixes, so one comparison tells whether it goes deeper than best.
            if best < len(theirs) and best < len(hashes) and theirs[best] == hashes[best]:
                best = common_prefix(theirs, hashes)
        return best


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix of two hash chains.

    Chained hashes that agree at a position agree at all before it, so halving is sound.
    """
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[middle - 1] == right[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
