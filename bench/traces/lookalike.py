"""A seeded look-alike of Mooncake's conversation trace, for when the file is not at hand.

What makes that trace hard for routers is kept: one block that every prompt begins with, a third of
the prompts continuing an earlier one, a heavy tail of lengths, and reuse after minutes rather than
seconds. Lengths are first drawn as scores that grow from turn to turn, then mapped by rank onto the
quantiles of the original, so that the marginal distribution is right whatever the growth.
"""

import math
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bench.traces.mooncake import BLOCK_TOKENS
from bench.traces.record import TraceRequest

SHARED_BLOCK_ID = 0

# Share of requests that are the n-th turn of a conversation; later turns thin out by the ratio.
# A turn after a prompt of one block cannot be told from a first turn by its ids, so fewer first
# turns are drawn than the 67 % that the ids of the original show.
TURN_SHARES = (0.62, 0.19, 0.08, 0.034)
_TAIL_RATIO = 2 / 3

_SESSIONS_PER_S = 2.25  # with the turns that follow: 3.4 requests/s on average over an hour
_GAP_P50_S = 114.0
_GAP_SIGMA = 1.1  # of the logarithm: p90 is four times the median, as in the original
_GROWTH_P50 = 0.05  # logarithm of next length over previous length
_GROWTH_SIGMA = 1.6
_SCORE_SIGMA = 1.15

_INPUT_TOKENS = {
    0: 890, 10: 964, 20: 1_662, 30: 3_263, 40: 4_993, 50: 6_909, 60: 9_570, 70: 13_196,
    80: 17_869, 90: 27_367, 95: 39_550, 97: 52_216, 98: 66_449, 99: 85_400, 100: 126_195,
}  # fmt: skip
_OUTPUT_TOKENS = {0: 1, 10: 24, 25: 156, 50: 350, 75: 472, 90: 597, 95: 712, 99: 1_118, 100: 2_000}


class _Turn(Struct, frozen=True):
    arrival_s: float
    session: int
    score: float


def generate_conversations(requests: int, *, seed: int) -> list[TraceRequest]:
    """`requests` (>= 1) prompts in order of arrival; the same seed gives the same trace."""
    rng = np.random.default_rng(seed)
    turns = _turns(requests, rng)
    scores = np.array([turn.score for turn in turns])
    ranks = np.argsort(np.argsort(scores, kind="stable"), kind="stable")
    inputs = _quantiles((ranks + 0.5) / requests, _INPUT_TOKENS)
    outputs = _quantiles(rng.random(requests), _OUTPUT_TOKENS)
    return list(_prompts(turns, inputs, outputs))


def _turns(requests: int, rng: np.random.Generator) -> list[_Turn]:
    """Turns of sessions that start at a constant rate; the first `requests` of them by time."""
    survival = _survival()
    sessions = math.ceil(requests * TURN_SHARES[0] * 1.5) + 50
    starts_s = np.cumsum(rng.exponential(1 / _SESSIONS_PER_S, sessions))
    counts = 1 + np.searchsorted(-survival, -rng.random(sessions))
    turns = [
        turn
        for session in range(sessions)
        for turn in _session(session, float(starts_s[session]), int(counts[session]), rng)
    ]
    turns.sort(key=lambda turn: turn.arrival_s)
    return turns[:requests]


def _survival() -> NDArray[np.float64]:
    """P(a session has more than n turns), n = 1, 2, ..., down to one in a million."""
    shares = list(TURN_SHARES)
    while shares[-1] / shares[0] > 1e-6:
        shares.append(shares[-1] * _TAIL_RATIO)
    return np.array(shares[1:]) / shares[0]


def _session(session: int, start_s: float, turns: int, rng: np.random.Generator) -> Iterator[_Turn]:
    arrival_s = start_s
    score = rng.normal(0.0, _SCORE_SIGMA)
    for _ in range(turns):
        yield _Turn(arrival_s, session, score)
        arrival_s += rng.lognormal(math.log(_GAP_P50_S), _GAP_SIGMA)
        score += rng.lognormal(math.log(_GROWTH_P50), _GROWTH_SIGMA)


def _quantiles(ranks: NDArray[np.float64], table: dict[int, int]) -> NDArray[np.int64]:
    """Values at `ranks` (0..1) of the distribution whose percentiles `table` lists."""
    values = np.interp(100 * ranks, list(table), list(table.values()))
    return np.maximum(1, np.rint(values)).astype(np.int64)


def _prompts(
    turns: list[_Turn], inputs: NDArray[np.int64], outputs: NDArray[np.int64]
) -> Iterator[TraceRequest]:
    """Each turn repeats the full blocks of the prompt before it and goes on with new ones."""
    next_id = SHARED_BLOCK_ID + 1
    history: dict[int, tuple[int, ...]] = {}
    for turn, input_tokens, output_tokens in zip(
        turns, inputs.tolist(), outputs.tolist(), strict=True
    ):
        blocks = -(-input_tokens // BLOCK_TOKENS)
        known = history.get(turn.session, (SHARED_BLOCK_ID,))[:blocks]
        fresh = blocks - len(known)
        block_ids = (*known, *range(next_id, next_id + fresh))
        next_id += fresh
        history[turn.session] = block_ids[: max(1, input_tokens // BLOCK_TOKENS)]
        yield TraceRequest(
            arrival_s=turn.arrival_s,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            block_ids=block_ids,
            block_tokens=BLOCK_TOKENS,
            session=turn.session,
        )
