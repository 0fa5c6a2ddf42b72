"""Randomness as a function: the same (seed, label) always gives the same number.

Decisions then do not depend on how concurrent requests interleave, and a logged one can be made
again on its own.
"""

from xxhash import xxh3_64_intdigest


def draw(seed: int, label: str) -> float:
    """A number in [0, 1), uniform over labels."""
    digest = int(xxh3_64_intdigest(label.encode(), seed & 0xFFFFFFFFFFFFFFFF))
    return (digest >> 11) / float(1 << 53)
