"""Rates of the index itself, without network: changes applied, prompts matched, memory."""

import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from bench.index.baseline import DictIndex
from bench.index.content import PROMPT_BLOCKS, Hashes, churn, hash_batches
from indexer.core.blocks import unpack_hashes
from indexer.core.events import Batch, Clear, Register, decode_batch, encode, hash_count
from indexer.core.index import PrefixIndex
from indexer.core.ingest import Ingest
from indexer.core.streams import IngestConfig
from indexer.core.tiers import Tier

RESIDENT_BLOCKS = 1_500_000  # eight engines of 3 M tokens, at 16 tokens a block
INSTANCES = 8


def filled_index(instances: int, blocks: int, seed: int = 1) -> tuple[PrefixIndex, list[int]]:
    """An index with `blocks` distinct blocks spread over `instances` sources."""
    index = PrefixIndex()
    sources = [index.open_source() for _ in range(instances)]
    for number, batch in enumerate(hash_batches(seed, blocks // PROMPT_BLOCKS, PROMPT_BLOCKS)):
        index.register(sources[number % instances], Tier.GPU, batch)
    return index, sources


def apply_decoded_mops(batches: Sequence[Batch]) -> float:
    """Million block operations a second from decoded batches into a full index."""
    index, sources = filled_index(INSTANCES, RESIDENT_BLOCKS)
    by_name = {f"engine-{n}": source for n, source in enumerate(sources)}
    gc.collect()
    start_s = perf_counter()
    for batch in batches:
        source = by_name[batch.instance]
        for op in batch.ops:
            if isinstance(op, Register):
                index.register(source, Tier.GPU, op.hashes)
            elif not isinstance(op, Clear):
                index.evict(source, Tier.GPU, op.hashes)
    return _mops(batches, perf_counter() - start_s)


def apply_wire_mops(batches: Sequence[Batch]) -> float:
    """The same from the bytes as they come from NATS, through cursor and ingestion."""
    ingest = Ingest(IngestConfig())
    wire = [encode(batch) for batch in batches]
    for number, fill in enumerate(hash_batches(2, RESIDENT_BLOCKS // PROMPT_BLOCKS, PROMPT_BLOCKS)):
        other = Batch(f"other-{number % INSTANCES}", 0, 1, number // INSTANCES, 0.0, [])
        op = Register("gpu", fill.tobytes())
        ingest.on_batch(Batch(other.instance, 0, 1, other.seq, 0.0, [op]), 0.0)
    gc.collect()
    start_s = perf_counter()
    for data in wire:
        batch, _ = decode_batch(data)
        ingest.on_batch(batch, 0.0)
    return _mops(batches, perf_counter() - start_s)


def dict_apply_mops(batches: Sequence[Batch]) -> float:
    """The baseline's rate on the same batches, integers made beforehand."""
    index = DictIndex()
    for number, fill in enumerate(hash_batches(1, RESIDENT_BLOCKS // PROMPT_BLOCKS, PROMPT_BLOCKS)):
        index.register(number % INSTANCES, fill.tolist())
    work = [
        (int(batch.instance.removeprefix("engine-")), isinstance(op, Register), _numbers(op.hashes))
        for batch in batches
        for op in batch.ops
        if not isinstance(op, Clear)
    ]
    gc.collect()
    start_s = perf_counter()
    for source, stores, hashes in work:
        (index.register if stores else index.evict)(source, hashes)
    return _mops(batches, perf_counter() - start_s)


def _numbers(packed: bytes) -> list[int]:
    return unpack_hashes(packed).tolist()


def _mops(batches: Sequence[Batch], elapsed_s: float) -> float:
    return sum(hash_count(batch.ops) for batch in batches) / elapsed_s / 1e6


class MatchSetting:
    """Prompts of `blocks` blocks; `holders` drawn instances hold each to a drawn depth, one whole.

    Few share a block, as in serving; the rest of the fleet's content lies around them.
    """

    def __init__(self, instances: int, blocks: int, prompts: int = 50, holders: int = 3) -> None:
        rng = np.random.default_rng(blocks)
        self.index, sources = filled_index(instances, RESIDENT_BLOCKS)
        self.prompts = hash_batches(blocks, prompts, blocks)
        for prompt in self.prompts:
            chosen = rng.choice(sources, min(holders, instances), replace=False)
            self.index.register(int(chosen[0]), Tier.GPU, prompt)
            for source in chosen[1:]:
                depth = int(rng.integers(0, blocks + 1))
                self.index.register(int(source), Tier.GPU, prompt[:depth])

    def sample_us(self, rounds: int) -> list[float]:
        return _timed_us(self.index.match, self.prompts, rounds)


def _timed_us(
    call: Callable[[Hashes], object], prompts: Sequence[Hashes], rounds: int
) -> list[float]:
    samples = []
    for _ in range(rounds):
        for prompt in prompts:
            start_s = perf_counter()
            call(prompt)
            samples.append((perf_counter() - start_s) * 1e6)
    return samples


def resident_mb() -> float:
    """Resident memory of this process, MB of 2**20 bytes (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_figures() -> tuple[float, float]:
    """(bytes per block, resident MB) of a process with 1.5 M blocks ingested; use a fresh one."""
    gc.collect()
    before_mb = resident_mb()
    ingest = Ingest(IngestConfig())
    per_instance = RESIDENT_BLOCKS // PROMPT_BLOCKS // INSTANCES
    rng = np.random.default_rng(3)
    for seq in range(per_instance):
        for instance in range(INSTANCES):
            fresh = rng.integers(1, 2**64, PROMPT_BLOCKS, dtype=np.uint64).tobytes()
            batch = Batch(f"e{instance}", 0, 1, seq, 0.0, [Register("gpu", fresh)])
            ingest.on_batch(batch, 0.0)
    gc.collect()
    after_mb = resident_mb()
    return (after_mb - before_mb) * 2**20 / RESIDENT_BLOCKS, after_mb


def churn_batches() -> list[Batch]:
    """The change load of the benchmark: 3 M block operations."""
    return churn(7, INSTANCES, 2000, PROMPT_BLOCKS)
