"""All metrics of a router process, created in one place."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX: Final = "warmroute_router_"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 1800)
_SHORT_SECONDS: Final = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.05, 0.2)


@dataclass(frozen=True)
class Metrics:
    """What is counted as it happens."""

    requests: Counter
    retries: Counter
    decisions: Counter
    keys: Counter
    prompt_tokens: Counter
    predicted_cached_tokens: Counter
    actual_cached_tokens: Counter
    instance_failures: Counter
    internal_errors: Counter
    time_to_first_byte_s: Histogram
    request_s: Histogram
    decision_s: Histogram

    @classmethod
    def create(cls, registry: CollectorRegistry) -> "Metrics":
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(PREFIX + name, text, buckets=buckets, registry=registry)

        return cls(
            requests=counter("requests", "Requests by how they ended", "path_kind", "outcome"),
            retries=counter("retries", "Requests tried on another instance", "reason"),
            decisions=counter("decisions", "Decisions taken", "policy", "reason", "source"),
            keys=counter("keys", "Prompt keys by how exact they are", "kind"),
            prompt_tokens=counter("prompt_tokens", "Prompt tokens seen, estimated for text"),
            predicted_cached_tokens=counter(
                "predicted_cached_tokens", "Prompt tokens expected in the chosen engine's cache"
            ),
            actual_cached_tokens=counter(
                "actual_cached_tokens", "Prompt tokens that engines reported as cached"
            ),
            instance_failures=counter(
                "instance_failures", "Tries that an instance failed", "instance", "reason"
            ),
            internal_errors=counter("internal_errors", "Unexpected exceptions"),
            time_to_first_byte_s=histogram(
                "time_to_first_byte_seconds", "From request head to first body byte", _SECONDS
            ),
            request_s=histogram("request_seconds", "From request head to answer's end", _SECONDS),
            decision_s=histogram("decision_seconds", "Duration of decisions", _SHORT_SECONDS),
        )


class CounterStructs(Collector):
    """Shows the fields of counter structs, read when scraped."""

    def __init__(self, structs: Mapping[str, msgspec.Struct]) -> None:
        """`structs` by the prefix of their metrics."""
        self._structs = structs

    def collect(self) -> Iterator[Metric]:
        for prefix, struct in self._structs.items():
            for field, value in msgspec.structs.asdict(struct).items():
                name = PREFIX + prefix + field
                yield CounterMetricFamily(name, field.replace("_", " "), value=value)


class Gauges(Collector):
    """Numbers that somebody else keeps, read when scraped."""

    def __init__(self, readers: Mapping[str, Callable[[], float]]) -> None:
        self._readers = readers

    def collect(self) -> Iterator[Metric]:
        for name, read in self._readers.items():
            yield GaugeMetricFamily(PREFIX + name, name.replace("_", " "), value=read())


class InstanceStates(Collector):
    """Instances by state."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(PREFIX + "instances", "Instances known", labels=["state"])
        for state in ("up", "down", "unknown"):
            family.add_metric([state], self._count(state))
        yield family
