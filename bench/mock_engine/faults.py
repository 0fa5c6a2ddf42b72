"""Misbehaviour on demand, for tests of whoever talks to the engine."""

import msgspec


class Faults(msgspec.Struct, forbid_unknown_fields=True):
    """What is broken right now; the default is nothing. Counts run down to 0 by themselves.

    Dropped batches use up their sequence number and can be replayed, like those that ZMQ drops
    at a full queue.
    """

    drop_batches: int = 0  # next event batches not sent live
    duplicate_batches: int = 0  # next event batches sent twice
    event_delay_s: float = 0.0  # real seconds between a step and its live event batch
    paused: bool = False  # the engine schedules no further step; HTTP goes on
    refuse: bool = False  # generation requests get 503
    reset_after_tokens: int | None = None  # streams are cut by a TCP reset after so many tokens

    def replace_by(self, other: "Faults") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    def take_drop(self) -> bool:
        """Whether the next batch is to be dropped; counts it."""
        due = self.drop_batches > 0
        self.drop_batches -= due
        return due

    def take_duplicate(self) -> bool:
        """Whether the next batch is to be sent twice; counts it."""
        due = self.duplicate_batches > 0
        self.duplicate_batches -= due
        return due
