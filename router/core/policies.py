"""Routing policies: pure functions from (request, candidates, draw) to a decision.

Candidates come sorted by key and are never empty. A policy minimises a cost; `least_prefill` does
it in seconds. Ties and near ties go to a draw that depends on the request id alone.
"""

from collections.abc import Callable, Sequence
from typing import Final

from router.core.views import CandidateTerms, CandidateView, Decision, RequestView

Policy = Callable[[RequestView, Sequence[CandidateView], float], Decision]
Cost = Callable[[CandidateView, float, float], float]

# Candidates this close to the best count as equal: no estimate here is better than that.
NEAR_TIE_S: Final = 0.010
NEAR_TIE_SHARE: Final = 0.02
# Chosen by simulation, see docs/experiments/work-price.md.
DEFAULT_WORK_PRICE: Final = 4.0


def work_ahead_s(candidate: CandidateView) -> float:
    """Seconds of prefill already sent to the instance and not finished."""
    return candidate.pending_prefill_tokens / candidate.prefill_tokens_per_s


def own_work_s(request: RequestView, candidate: CandidateView) -> float:
    """Seconds of prefill this request adds there: its tokens less those expected in cache."""
    uncached = max(0.0, request.prompt_tokens - candidate.expected_cached_tokens)
    return uncached / candidate.prefill_tokens_per_s


def least_prefill(work_price: float) -> Policy:
    """Least prefill work left, with a price on new work.

    cost = work ahead + (1 + work_price) * own work, in seconds. At price 0 this is the rule that
    several groups found independently (token-load with look-ahead in llm-d, LPWL, the prefill
    term of Dynamo). The price stands for those who come later: a second of prefill spent on a
    cache miss is a second of capacity they do not get, the form that the admission cost of an
    M/G/1 queue takes (Hyytia, Penttinen, Aalto 2012). Near ties go to the shorter queue, then to
    the draw.

    Args:
        work_price: 0 or more, without unit.
    """

    def choose(request: RequestView, candidates: Sequence[CandidateView], draw: float) -> Decision:
        costs = [work_ahead_s(c) + (1.0 + work_price) * own_work_s(request, c) for c in candidates]
        best = min(costs)
        limit = best + max(NEAR_TIE_S, NEAR_TIE_SHARE * best)
        near = [i for i, cost in enumerate(costs) if cost <= limit]
        chosen = _shortest_queue(candidates, near, draw)
        reason = _reason(candidates, chosen)
        return _decision("least_prefill", reason, request, candidates, costs, chosen)

    return choose


def longest_match(
    request: RequestView, candidates: Sequence[CandidateView], draw: float
) -> Decision:
    """Longest matched prefix, ties to the shorter queue.

    Kept to show why that is not enough: one block that all prompts share sends everything to
    one instance.
    """
    costs = [-float(c.matched_prefix_tokens or 0) for c in candidates]
    return _cheapest("longest_match", request, candidates, costs, draw)


def least_requests(
    request: RequestView, candidates: Sequence[CandidateView], draw: float
) -> Decision:
    """Fewest unfinished requests."""
    costs = [float(c.queue_depth_requests) for c in candidates]
    return _cheapest("least_requests", request, candidates, costs, draw)


def round_robin(
    request: RequestView,
    candidates: Sequence[CandidateView],
    draw: float,  # noqa: ARG001
) -> Decision:
    """Each in turn, by the request's arrival number."""
    chosen = request.ordinal % len(candidates)
    costs = [0.0] * len(candidates)
    return _decision("round_robin", "turn", request, candidates, costs, chosen)


def power_of_two(
    request: RequestView, candidates: Sequence[CandidateView], draw: float
) -> Decision:
    """Fewer unfinished requests of two drawn candidates (Mitzenmacher: robust to old loads)."""
    count = len(candidates)
    pair = int(draw * count * max(1, count - 1))
    first = pair % count
    second = (first + 1 + pair // count) % count
    depths = [float(c.queue_depth_requests) for c in candidates]
    chosen = first if depths[first] <= depths[second] else second
    return _decision("power_of_two", "two_choices", request, candidates, depths, chosen)


def random_choice(
    request: RequestView, candidates: Sequence[CandidateView], draw: float
) -> Decision:
    """Any of them, equally likely."""
    costs = [0.0] * len(candidates)
    chosen = _pick(range(len(candidates)), draw)
    return _decision("random", "draw", request, candidates, costs, chosen)


POLICIES: Final[dict[str, Policy]] = {
    "least_prefill": least_prefill(DEFAULT_WORK_PRICE),
    "round_robin": round_robin,
    "least_requests": least_requests,
    "power_of_two": power_of_two,
    "random": random_choice,
    "longest_match": longest_match,
}


def make_policy(name: str, work_price: float = DEFAULT_WORK_PRICE) -> Policy:
    """The policy of that name.

    Raises:
        KeyError: there is none; `POLICIES` has the names.
    """
    return least_prefill(work_price) if name == "least_prefill" else POLICIES[name]


def _cheapest(
    policy: str,
    request: RequestView,
    candidates: Sequence[CandidateView],
    costs: Sequence[float],
    draw: float,
) -> Decision:
    best = min(costs)
    equal = [i for i, cost in enumerate(costs) if cost == best]
    chosen = _shortest_queue(candidates, equal, draw)
    return _decision(policy, _reason(candidates, chosen), request, candidates, costs, chosen)


def _shortest_queue(
    candidates: Sequence[CandidateView], indices: Sequence[int], draw: float
) -> int:
    shortest = min(candidates[i].queue_depth_requests for i in indices)
    return _pick([i for i in indices if candidates[i].queue_depth_requests == shortest], draw)


def _pick(indices: Sequence[int], draw: float) -> int:
    return indices[int(draw * len(indices))]


def _reason(candidates: Sequence[CandidateView], chosen: int) -> str:
    """no_match: nobody holds any of it; prefix: the deepest holder won; load: it did not."""
    deepest = max(c.expected_cached_tokens for c in candidates)
    if deepest <= 0:
        return "no_match"
    return "prefix" if candidates[chosen].expected_cached_tokens >= deepest else "load"


def _decision(
    policy: str,
    reason: str,
    request: RequestView,
    candidates: Sequence[CandidateView],
    costs: Sequence[float],
    chosen: int,
) -> Decision:
    terms = tuple(
        CandidateTerms(
            c.key,
            c.matched_prefix_tokens,
            c.queue_depth_requests,
            c.index_staleness_s,
            c.confidence,
            work_ahead_s(c),
            own_work_s(request, c),
            cost,
        )
        for c, cost in zip(candidates, costs, strict=True)
    )
    best = candidates[chosen]
    return Decision(policy, best.key, reason, best.expected_cached_tokens, terms)
