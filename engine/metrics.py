"""Prometheus text from the worker's statistics.

Knows how a statistics snapshot becomes metric families. Does not keep any number of its own: every scrape
reads one snapshot, so that all values in it belong to the same moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

PREFIX = "conformance_engine_"
CONTENT_TYPE = CONTENT_TYPE_LATEST

# Statistics that only ever rise, beside those that say so by ending in _total. All other numbers are gauges.
COUNTERS = frozenset({"steps", "lookups", "hits", "inserts", "evictions_lru", "copies"})


class StatsCollector(Collector):
    """Every number of a snapshot as one metric; what is not a number is left out."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        for name, value in self._stats().items():
            if isinstance(value, int | float):
                yield _metric(name, float(value))


def _metric(name: str, value: float) -> Metric:
    rises = name in COUNTERS or name.endswith("_total")
    family = CounterMetricFamily if rises else GaugeMetricFamily
    return family(PREFIX + name, f"`{name}` of the cache statistics", value=value)


def registry(stats: Callable[[], Mapping[str, Any]]) -> CollectorRegistry:
    """A registry of its own: nothing else in the process adds to it."""
    made = CollectorRegistry(auto_describe=False)
    made.register(StatsCollector(stats))
    return made


def render(source: CollectorRegistry) -> bytes:
    """The exposition text of one snapshot."""
    return generate_latest(source)
