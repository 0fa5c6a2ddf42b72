"""Prometheus metrics of an index replica, read from its counters when scraped."""

from collections.abc import Callable, Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from indexer.core.tiers import WIRE_NAMES, Tier
from indexer.feed import IndexFeed


class IndexCollector(Collector):
    """Exposes ingestion and feed counters under a process's own prefix."""

    def __init__(self, feed: IndexFeed, clock: Callable[[], float], prefix: str) -> None:
        self._feed = feed
        self._clock = clock
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        ingest = self._feed.ingest
        for counters in (ingest.counters, self._feed.counters):
            for name, value in msgspec.structs.asdict(counters).items():
                text = f"{name.replace('_', ' ').capitalize()} since start."
                yield CounterMetricFamily(f"{self._prefix}_{name}", text, value=value)
        yield self._gauge("nats_connected", "1 while NATS is connected.", self._feed.connected)
        streams = list(ingest.streams.values())
        yield self._gauge("streams", "Event streams known.", len(streams))
        synced = sum(stream.synced for stream in streams)
        yield self._gauge("streams_synced", "Event streams without a known hole.", synced)
        now_s = self._clock()
        staleness_s = max((now_s - s.proven_s for s in streams), default=0.0)
        yield self._gauge(
            "staleness_seconds", "Longest time since a stream was proven complete.", staleness_s
        )
        blocks = GaugeMetricFamily(
            f"{self._prefix}_blocks", "Distinct blocks known.", labels=["tier"]
        )
        for tier in Tier:
            blocks.add_metric([WIRE_NAMES[tier]], ingest.index.blocks(tier))
        yield blocks

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(f"{self._prefix}_{name}", text, value=float(value))
