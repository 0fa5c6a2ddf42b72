"""What the client saw of each request."""

from msgspec import Struct


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of a replay. Times are seconds; None where the request did not get that far.

    Latencies count from the scheduled time, so that a client that falls behind cannot hide the
    wait it caused; `lag_s` says how much of them that is.
    """

    index: int  # position in the replayed slice
    warmup: bool
    scheduled_s: float  # since the replay's start
    lag_s: float = 0.0  # actual minus scheduled send time
    ttft_s: float | None = None  # to the first data line that carries content
    tpot_s: float | None = None  # between output tokens, mean; None with fewer than two
    e2e_s: float | None = None  # to the end of the stream
    status: int | None = None  # HTTP status
    error: str | None = None  # None exactly when the request succeeded
    prompt_tokens: int = 0  # this and the next two as the engine's usage tells
    cached_tokens: int = 0
    output_tokens: int = 0
    instance: str | None = None  # engine that answered, where the router says so
