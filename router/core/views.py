"""What a policy sees and what it answers: values only.

Every number says its unit in its name; None means "not known", never zero.
"""

import msgspec

InstanceKey = tuple[str, int]  # (instance, data-parallel rank)


class RequestView(msgspec.Struct, frozen=True):
    """The part of a request that a policy may know. The output length is not part of it."""

    request_id: str
    ordinal: int  # arrival number at this router
    prompt_tokens: int  # 0 when not known


class CandidateView(msgspec.Struct, frozen=True):
    """One instance that could take the request, as known at the moment of the decision."""

    key: InstanceKey
    matched_prefix_tokens: int | None  # depth in the index; None: no index speaks of it
    expected_cached_tokens: float  # what is counted on: depth discounted by confidence
    confidence: float | None  # of the depth, 0 to 1
    index_staleness_s: float | None  # since the index was last known to be complete there
    queue_depth_requests: int  # sent there and unfinished, plus what only the engine knows of
    pending_prefill_tokens: float  # prompt tokens sent there and not prefilled yet
    prefill_tokens_per_s: float  # rate at which this instance works them off


class CandidateTerms(msgspec.Struct, frozen=True):
    """A candidate's share in a decision: inputs and the seconds made of them."""

    key: InstanceKey
    matched_prefix_tokens: int | None
    queue_depth_requests: int
    index_staleness_s: float | None
    confidence: float | None
    work_ahead_s: float
    own_work_s: float
    cost: float  # what the policy minimised, in its own unit


class Decision(msgspec.Struct, frozen=True):
    """Where the request goes and why."""

    policy: str
    key: InstanceKey
    reason: str  # from a fixed, small set, see `policies`
    expected_cached_tokens: float  # at the chosen instance
    candidates: tuple[CandidateTerms, ...]


class Endpoint(msgspec.Struct, frozen=True):
    """An instance as the router may address it."""

    key: InstanceKey
    url: str  # without a trailing slash
    models: tuple[str, ...] = ()  # () until known: may serve any
    healthy: bool = True
    running_requests: int | None = None  # as the engine reported; None: no fresh report
    waiting_requests: int | None = None
    load_at_s: float | None = None  # when that was so; tells an equal but newer report apart


class PrefixMatch(msgspec.Struct, frozen=True):
    """What one overlap source says about one instance for one prompt."""

    depth_tokens: int
    confidence: float  # 0 to 1
    staleness_s: float
