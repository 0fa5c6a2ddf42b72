"""Where a block lies, fastest first."""

from enum import IntEnum
from typing import Final


class Tier(IntEnum):
    """Storage tier of a block. The value orders tiers from fastest to slowest."""

    GPU = 0
    HOST = 1
    DISK = 2
    REMOTE = 3


WIRE_NAMES: Final = ("gpu", "host", "disk", "remote")
TIER_OF: Final = {name: Tier(position) for position, name in enumerate(WIRE_NAMES)}

MASK_64: Final = (1 << 64) - 1
# Odd multipliers make the mix a bijection, so a block in two tiers does not cancel in the digest.
_DIGEST_MULTIPLIER: Final = (1, 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


def digest_multiplier(tier: Tier) -> int:
    """The odd factor of a tier's digest terms."""
    return _DIGEST_MULTIPLIER[tier]


def digest_term(tier: Tier, block_hash: int) -> int:
    """What one held (tier, hash) contributes to a stream's XOR digest."""
    return (block_hash * _DIGEST_MULTIPLIER[tier]) & MASK_64
