"""Whether an instance may be sent requests, from probes and from how its answers end.

An instance is up until `failures_to_down` things in a row went wrong; then it is down for a pause
that doubles with each failed return, and a success brings it back at once. A client's own error is
no failure and must not be reported here.
"""

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class HealthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    failures_to_down: Annotated[int, msgspec.Meta(ge=1)] = 3
    pause_min_s: Seconds = 1.0
    pause_max_s: Seconds = 30.0


class InstanceHealth:
    """The state of one instance."""

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self._failures = 0
        self._pauses = 0
        self._down_until_s: float | None = None

    def succeeded(self) -> None:
        """It answered: whatever was held against it is forgotten."""
        self._failures = self._pauses = 0
        self._down_until_s = None

    def failed(self, now_s: float) -> None:
        """It refused, broke off or timed out."""
        self._failures += 1
        on_trial = self._down_until_s is not None and now_s >= self._down_until_s
        if self._failures >= self._config.failures_to_down and (
            self._down_until_s is None or on_trial
        ):
            pause_s = self._config.pause_min_s * 2 ** min(self._pauses, 16)
            self._down_until_s = now_s + min(pause_s, self._config.pause_max_s)
            self._pauses += 1

    def is_up(self, now_s: float) -> bool:
        """Up, or down for long enough to be tried again."""
        return self._down_until_s is None or now_s >= self._down_until_s
