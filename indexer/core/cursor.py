"""Position in one event stream, as a value. Knows no policy: it only names what a number means."""

from enum import Enum

import msgspec


class Step(Enum):
    """How a batch at (epoch, seq) relates to what was applied before."""

    NEXT = "next"  # exactly the next batch
    DUPLICATE = "duplicate"  # already applied
    GAP = "gap"  # something between is missing
    NEW_EPOCH = "new_epoch"  # a later life of the engine
    STALE_EPOCH = "stale_epoch"  # an ended life; to be fenced


class Cursor(msgspec.Struct, frozen=True):
    """The last applied batch; seq -1 is the empty start of an epoch."""

    epoch: int
    seq: int

    def classify(self, epoch: int, seq: int) -> Step:
        if epoch != self.epoch:
            return Step.NEW_EPOCH if epoch > self.epoch else Step.STALE_EPOCH
        if seq == self.seq + 1:
            return Step.NEXT
        return Step.DUPLICATE if seq <= self.seq else Step.GAP
