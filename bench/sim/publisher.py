"""Stands in for relay and bus: turns an engine's KV events into batches that arrive later."""

from collections.abc import Callable

from bench.des import Simulation
from bench.engine.block_cache import KvEvent, Removed, Stored
from indexer.core.blocks import pack_hashes
from indexer.core.events import Batch, Clear, Evict, Op, Register


class SimulatedRelay:
    """Publishes one instance's events with a fixed lag, in the wire's own structs."""

    def __init__(
        self,
        simulation: Simulation,
        instance: str,
        lag_s: float,
        deliver: Callable[[Batch], None],
    ) -> None:
        self._simulation = simulation
        self._instance = instance
        self._lag_s = lag_s
        self._deliver = deliver
        self._seq = 0

    def publish(self, kv_events: list[KvEvent]) -> None:
        ops = [_op(event) for event in kv_events]
        batch = Batch(self._instance, 0, 1, self._seq, self._simulation.now_s, ops)
        self._seq += 1
        self._simulation.after(self._lag_s, lambda: self._deliver(batch))


def _op(event: KvEvent) -> Op:
    if isinstance(event, Stored):
        return Register("gpu", pack_hashes(event.hashes))
    if isinstance(event, Removed):
        return Evict("gpu", pack_hashes(event.hashes))
    return Clear()
