"""All metrics of a relay process."""

from prometheus_client import CollectorRegistry, Counter, Gauge

_RANK = ("instance", "rank")


class RelayMetrics:
    """Counters and gauges, registered in the registry they are given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"warmroute_relay_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"warmroute_relay_{name}", text, labels, registry=registry)

        self.engine_batches = counter("engine_batches", "Event batches taken from engines", *_RANK)
        self.garbage = counter("garbage_messages", "Messages that are no event batch", *_RANK)
        self.duplicates = counter("duplicate_batches", "Batches that came both ways", *_RANK)
        self.skipped = counter("skipped", "Events or blocks not used", *_RANK, "reason")
        self.replays = counter("replays", "Replays asked for, by how they ended", *_RANK, "outcome")
        self.resets = counter("resets", "New epochs, by reason", *_RANK, "reason")
        self.missing = counter("missing_batches", "Batches too old to be replayed", *_RANK)
        self.published = counter("published_batches", "Batches handed to NATS", *_RANK)
        self.dropped = counter("dropped_messages", "Messages that NATS could not take", "reason")
        self.heartbeats = counter("heartbeats", "Heartbeats handed to NATS", "instance")
        self.snapshots = counter("snapshots", "Snapshot requests, by outcome", "outcome")
        self.poll_failures = counter("poll_failures", "Engine polls without answer", "instance")
        self.failures = counter("follower_failures", "Unexpected errors, retried", "instance")
        self.nats_connects = counter("nats_connects", "Connections made to NATS")
        self.nats_errors = counter("nats_errors", "Errors reported by the NATS client")
        self.nats_up = gauge("nats_up", "1 while connected to NATS")
        self.engine_up = gauge("engine_up", "1 while the engine answers", "instance")
        self.held = gauge("held_blocks", "(tier, block) pairs held", *_RANK)
        self.parked = gauge("parked_blocks", "Engine blocks without known parent", *_RANK)
        self.event_lag_s = gauge(
            "event_lag_seconds", "Engine's event time to publication, last batch", *_RANK
        )
