"""How many second tries a router may spend: a share of its traffic, so an outage is not multiplied.

Each request earns a fraction of a retry, time earns a few more, and what is saved is bounded.
"""

from typing import Annotated

import msgspec


class RetryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits for one request and for all together."""

    max_retries: Annotated[int, msgspec.Meta(ge=0)] = 2  # for one request
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2  # retries per request, in the long run
    min_per_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # also where there is little traffic
    burst: Annotated[float, msgspec.Meta(ge=1)] = 50.0  # saved at most; full at start


class RetryBudget:
    """A token bucket of retries."""

    def __init__(self, config: RetryConfig, now_s: float) -> None:
        self._config = config
        self._saved = config.burst
        self._updated_s = now_s

    def note_request(self) -> None:
        """A request came in and earned its share."""
        self._saved = min(self._config.burst, self._saved + self._config.share)

    def take(self, now_s: float) -> bool:
        """Spends one retry if there is one."""
        earned = max(0.0, now_s - self._updated_s) * self._config.min_per_s
        self._saved = min(self._config.burst, self._saved + earned)
        self._updated_s = now_s
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
