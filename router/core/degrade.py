"""How much of the control plane the router can rely on right now.

Levels as in the design: 0 all well; 1 lag, a gap or a silent instance; 2 no index or no bus: own
decisions only; 3 no load reports either; 4 nothing known. A worse level takes effect at once, a
better one only after it has held for a while, so that a flapping bus does not flap decisions.
"""

from typing import Annotated

import msgspec

LEVEL_NAMES = ("full", "index_partial", "own_decisions", "own_leases", "blind")


class Signals(msgspec.Struct, frozen=True):
    """What the adapters see."""

    bus_wanted: bool  # a bus is configured at all
    bus_connected: bool
    streams: int  # event streams known
    streams_synced: int  # of which complete and recently proven
    load_reports: int  # instances with a fresh load report


class DegradeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    better_after_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0


def level_of(signals: Signals) -> int:
    """The level that these signals alone call for."""
    if not signals.bus_wanted:
        return 2 if signals.load_reports else 3
    if not signals.bus_connected or signals.streams == 0:
        return 2 if signals.load_reports else 3
    return 0 if signals.streams_synced == signals.streams else 1


class DegradeLevel:
    """The level in force, with hysteresis towards better ones."""

    def __init__(self, config: DegradeConfig, level: int = 3) -> None:
        self._config = config
        self.level = level
        self.changes = 0
        self._better_since_s: float | None = None

    def observe(self, signals: Signals, now_s: float) -> int:
        """Takes in the signals and returns the level in force."""
        wanted = level_of(signals)
        if wanted >= self.level:
            self._better_since_s = None
            self._set(wanted)
        elif self._better_since_s is None:
            self._better_since_s = now_s
        elif now_s - self._better_since_s >= self._config.better_after_s:
            self._better_since_s = None
            self._set(wanted)
        return self.level

    def _set(self, level: int) -> None:
        if level != self.level:
            self.level = level
            self.changes += 1
