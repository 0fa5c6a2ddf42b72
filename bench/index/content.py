"""What the index benchmarks are fed: batches of blocks of several instances, from a seed."""

import numpy as np
import numpy.typing as npt

from indexer.core.events import Batch, Evict, Op, Register

Hashes = npt.NDArray[np.uint64]

PROMPT_BLOCKS = (
    750  # a 12,000-token prompt at 16 tokens a block, the mean of the conversation trace
)


def hash_batches(seed: int, batches: int, blocks: int) -> list[Hashes]:
    """`batches` arrays of `blocks` hashes each, none of them 0."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 2**64, blocks, dtype=np.uint64) for _ in range(batches)]


def churn(seed: int, instances: int, batches: int, blocks: int) -> list[Batch]:
    """A full cache's steady life: every batch evicts what an earlier one stored and stores anew.

    Batch k belongs to instance k modulo `instances`; the first round only stores.
    """
    stored = hash_batches(seed, batches, blocks)
    result = []
    for number, hashes in enumerate(stored):
        ops: list[Op] = [Register("gpu", hashes.tobytes())]
        if number >= instances:
            ops.insert(0, Evict("gpu", stored[number - instances].tobytes()))
        instance, seq = number % instances, number // instances
        result.append(Batch(f"engine-{instance}", 0, 1, seq, 0.0, ops))
    return result
