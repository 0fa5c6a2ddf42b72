"""How long one engine step takes, by model and hardware.

One step computes `tokens` new tokens (prefill chunks and one token for each decoding sequence).
Reading the weights bounds it from below, GEMMs grow with the tokens, attention of prefill with
the token pairs, attention of decode with the context read:

    T = cpu + max(weights, base + per_token * tokens) + per_pair * pairs + per_context * context

where `pairs` is the sum of chunk * (context_before + chunk / 2) over the prefill chunks and
`context` the total context of the decoding sequences.
"""

from collections.abc import Mapping
from typing import Final

import msgspec


class TimingProfile(msgspec.Struct, frozen=True):
    """Coefficients of the step time, all in seconds and not negative."""

    cpu_s: float  # scheduling and sampling, every step
    weights_s: float  # floor: reading the weights once
    base_s: float  # fixed part of the compute-bound regime
    token_s: float  # per new token
    pair_s: float  # per (query token, context token) pair of prefill attention
    context_token_s: float  # per context token read by decode attention

    def step_s(self, tokens: int, pairs: float, context_tokens: int) -> float:
        """Duration of a step in seconds; see the module for the three sums."""
        gemm_s = max(self.weights_s, self.base_s + self.token_s * tokens)
        attention_s = self.pair_s * pairs + self.context_token_s * context_tokens
        return self.cpu_s + gemm_s + attention_s


def prefill_pairs(chunk_tokens: int, context_before_tokens: int) -> float:
    """Query-context pairs of one causal prefill chunk behind an already computed context."""
    return chunk_tokens * (context_before_tokens + chunk_tokens / 2)


def _profile(
    weights_ms: float, base_ms: float, token_us: float, pair_ns: float, context_token_us: float
) -> TimingProfile:
    return TimingProfile(
        cpu_s=_CPU_S,
        weights_s=weights_ms * 1e-3,
        base_s=base_ms * 1e-3,
        token_s=token_us * 1e-6,
        pair_s=pair_ns * 1e-9,
        context_token_s=context_token_us * 1e-6,
    )


_CPU_S: Final = 1.5e-3  # 1 to 2 ms is published for today's schedulers; the middle of it

# Fits to published kernel profiles; pair and context terms are roofline estimates.
PROFILES: Final[Mapping[str, TimingProfile]] = {
    "llama-8b-a100": _profile(9.8, 6.9, 66.9, 2.8, 0.080),
    "llama-8b-h100": _profile(7.0, 3.5, 26.5, 0.9, 0.049),
    "llama-70b-h100-tp4": _profile(16.5, 10.0, 70.0, 1.2, 0.031),
    "llama-70b-h100-tp8": _profile(12.0, 8.4, 41.0, 0.6, 0.015),
    "llama-70b-a100-tp4": _profile(28.0, 20.0, 176.0, 3.5, 0.050),
    "qwen3-32b-h100-tp2": _profile(12.0, 4.0, 48.8, 1.0, 0.049),
}
