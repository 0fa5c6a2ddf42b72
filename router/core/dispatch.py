"""From a prompt key to a leased instance: the decision as the router and the simulator both run it.

The dispatcher joins what is known of each instance (endpoints, open leases, index, own recent
decisions) into candidate views, asks the policy, and takes the lease. It does no I/O.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Protocol

import msgspec

from router.core.draw import draw
from router.core.errors import NoInstanceError
from router.core.leases import Lease, LeaseBook
from router.core.policies import DEFAULT_WORK_PRICE, Policy
from router.core.prompt import PromptKey
from router.core.recent import RecentPrefixes
from router.core.views import (
    CandidateView,
    Decision,
    Endpoint,
    InstanceKey,
    PrefixMatch,
    RequestView,
)


class OverlapSource(Protocol):
    """Anything that knows which instance holds how much of a prompt."""

    def match(self, key: PromptKey, now_s: float) -> Mapping[InstanceKey, PrefixMatch]:
        """Matches per instance; an instance of which nothing is known is absent."""


class DispatchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers behind a decision."""

    seed: int = 0
    # A pool's prefill rate turns tokens into seconds; ratios between instances matter, not this.
    prefill_tokens_per_s: Annotated[float, msgspec.Meta(gt=0)] = 15_000.0
    # Price on new prefill work, see `policies.least_prefill`; other policies ignore it.
    work_price: Annotated[float, msgspec.Meta(ge=0)] = DEFAULT_WORK_PRICE
    # Own decisions remembered per instance, for when no index speaks.
    recent_blocks_per_instance: Annotated[int, msgspec.Meta(ge=1)] = 32_768
    recent_confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.8


class Dispatch(msgspec.Struct, frozen=True):
    """A decision that has been taken: the request now counts on the instance."""

    decision: Decision
    endpoint: Endpoint
    lease: Lease
    used_recent: bool  # own decisions, not the index, gave the expected hit


class Dispatcher:
    """Chooses instances and keeps the books on them."""

    def __init__(self, config: DispatchConfig, policy: Policy, overlap: OverlapSource) -> None:
        self.config = config
        self.policy = policy
        self.overlap = overlap
        self.leases = LeaseBook()
        self.recent = RecentPrefixes(config.recent_blocks_per_instance)
        self._endpoints: dict[InstanceKey, Endpoint] = {}
        self._sorted: list[Endpoint] | None = None
        self._foreign: dict[InstanceKey, ForeignLoad] = {}
        self._ordinal = 0
        self._mean_uncached_tokens = 0.0

    def set_endpoint(self, endpoint: Endpoint) -> None:
        """Adds an instance or replaces what is known of it."""
        known = self._endpoints.get(endpoint.key)
        if known is None or _report(known) != _report(endpoint):
            # Now, because a report can only be compared with the leases of its own time.
            self._foreign[endpoint.key] = self._foreign_load(endpoint)
        self._endpoints[endpoint.key] = endpoint
        self._sorted = None

    def remove_endpoint(self, key: InstanceKey) -> None:
        """No more requests go there; open leases run out by themselves."""
        self._endpoints.pop(key, None)
        self._foreign.pop(key, None)
        self._sorted = None
        self.recent.forget(key)

    def endpoints(self) -> Sequence[Endpoint]:
        """All known instances, sorted by key."""
        if self._sorted is None:
            self._sorted = [self._endpoints[key] for key in sorted(self._endpoints)]
        return self._sorted

    def dispatch(
        self,
        request_id: str,
        prompt: PromptKey,
        now_s: float,
        model: str | None = None,
        excluded: Collection[InstanceKey] = (),
        *,
        streams: bool = True,
    ) -> Dispatch:
        """Decides and takes the lease.

        Args:
            request_id: label of the draw that breaks ties.
            prompt: what is known of the prompt.
            now_s: monotonic seconds.
            model: served model the request asks for; None: any.
            excluded: instances already tried for this request.
            streams: whether the answer will show its first token when it is there.

        Raises:
            NoInstanceError: nobody is left to take it.
        """
        endpoints = self._eligible(model, excluded)
        if not endpoints:
            raise NoInstanceError(f"no healthy instance for model {model!r}")
        matches = self.overlap.match(prompt, now_s)
        recent = self._recent_where_needed(endpoints, matches, prompt)
        views = [self._candidate(e, prompt, matches.get(e.key), recent, now_s) for e in endpoints]
        request = RequestView(request_id, self._ordinal, prompt.tokens)
        self._ordinal += 1
        decision = self.policy(request, views, draw(self.config.seed, request_id))
        lease = self._take(decision, prompt, now_s, streams)
        chosen = self._endpoints[decision.key]
        used_recent = self._is_from_recent(decision.key, prompt, matches, recent)
        return Dispatch(decision, chosen, lease, used_recent)

    def _eligible(self, model: str | None, excluded: Collection[InstanceKey]) -> list[Endpoint]:
        return [
            endpoint
            for endpoint in self.endpoints()
            if endpoint.healthy
            and endpoint.key not in excluded
            and (not model or not endpoint.models or model in endpoint.models)
        ]

    def _recent_where_needed(
        self,
        endpoints: Sequence[Endpoint],
        matches: Mapping[InstanceKey, PrefixMatch],
        prompt: PromptKey,
    ) -> Mapping[InstanceKey, int]:
        """Own decisions, for instances with no match or with one of little confidence."""
        least = self.config.recent_confidence
        unsure = {
            endpoint.key
            for endpoint in endpoints
            if (match := matches.get(endpoint.key)) is None or match.confidence < least
        }
        if not unsure:
            return {}
        recent = self.recent.match(prompt.hashes)
        return {key: depth for key, depth in recent.items() if key in unsure}

    def _is_from_recent(
        self,
        key: InstanceKey,
        prompt: PromptKey,
        matches: Mapping[InstanceKey, PrefixMatch],
        recent: Mapping[InstanceKey, int],
    ) -> bool:
        remembered = self._remembered_tokens(key, prompt, recent)
        return remembered > _indexed_tokens(matches.get(key))

    def _remembered_tokens(
        self, key: InstanceKey, prompt: PromptKey, recent: Mapping[InstanceKey, int]
    ) -> float:
        return recent.get(key, 0) * prompt.block_tokens * self.config.recent_confidence

    def _take(self, decision: Decision, prompt: PromptKey, now_s: float, streams: bool) -> Lease:
        uncached_tokens = max(0.0, prompt.tokens - decision.expected_cached_tokens)
        self._mean_uncached_tokens += 0.05 * (uncached_tokens - self._mean_uncached_tokens)
        self.recent.note(decision.key, prompt.hashes)
        return self.leases.acquire(
            decision.key, uncached_tokens, prompt.hashes, now_s, streams=streams
        )

    def _candidate(
        self,
        endpoint: Endpoint,
        prompt: PromptKey,
        match: PrefixMatch | None,
        recent: Mapping[InstanceKey, int],
        now_s: float,
    ) -> CandidateView:
        load = self.leases.load(endpoint.key)
        rate = self.config.prefill_tokens_per_s
        foreign = self._foreign[endpoint.key]
        return CandidateView(
            endpoint.key,
            None if match is None else match.depth_tokens,
            self._expected_cached(endpoint.key, prompt, match, recent),
            None if match is None else match.confidence,
            None if match is None else match.staleness_s,
            load.in_flight + foreign.requests,
            load.pending_tokens(now_s, rate) + foreign.waiting * self._mean_uncached_tokens,
            rate,
        )

    def _expected_cached(
        self,
        key: InstanceKey,
        prompt: PromptKey,
        match: PrefixMatch | None,
        recent: Mapping[InstanceKey, int],
    ) -> float:
        """Tokens counted on: the most that index, own decisions or prompts under way promise."""
        known = max(self._remembered_tokens(key, prompt, recent), _indexed_tokens(match))
        pending = self.leases.pending_match(key, prompt.hashes) * prompt.block_tokens
        # An engine always computes the last token of a prompt, and hits are whole blocks.
        most = max(0, prompt.tokens - 1) // prompt.block_tokens * prompt.block_tokens
        return min(max(known, float(pending)), float(most))

    def _foreign_load(self, endpoint: Endpoint) -> "ForeignLoad":
        """Requests there that are not ours; none where the engine did not say.

        A report is a moment old: requests of ours that ended since are in it, so the larger of our
        counts at this report and at the one before is what it may contain of ours.
        """
        in_flight = self.leases.load(endpoint.key).in_flight
        before = self._foreign.get(endpoint.key)
        own = in_flight if before is None else max(in_flight, before.own_in_flight)
        if endpoint.running_requests is None or endpoint.waiting_requests is None:
            return ForeignLoad(0, 0, in_flight)
        foreign = max(0, endpoint.running_requests + endpoint.waiting_requests - own)
        return ForeignLoad(foreign, min(endpoint.waiting_requests, foreign), in_flight)


class ForeignLoad(msgspec.Struct, frozen=True):
    """What an engine's load report holds besides this router's own requests."""

    requests: int
    waiting: int  # of which queued in the engine
    own_in_flight: int  # our open leases there when the report came


def _report(endpoint: Endpoint) -> tuple[int | None, int | None, float | None]:
    return endpoint.running_requests, endpoint.waiting_requests, endpoint.load_at_s


def _indexed_tokens(match: PrefixMatch | None) -> float:
    return 0.0 if match is None else match.depth_tokens * match.confidence
