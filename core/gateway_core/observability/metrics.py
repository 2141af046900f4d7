"""Metrics that API and operator share: build, event loop, watches, round trips to Redis."""

import asyncio
import platform
from collections.abc import Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway_core.api.resource import RELEASE
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.informer import Cache

LAG_SECONDS = 0.5
"""Interval of the measurements of the event loop's lag."""


class ProcessMetrics:
    """Metrics of a process; `component` is `api` or `operator`."""

    def __init__(self, registry: CollectorRegistry, component: str) -> None:
        # a creation time for each series would double their number
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry
        ProcessCollector(registry=registry)
        build = Gauge(
            "gateway_build_info",
            "Always 1; the labels name component and versions.",
            ("component", "version", "python"),
            registry=registry,
        )
        build.labels(component, RELEASE, platform.python_version()).set(1)
        self._lag = Histogram(
            "gateway_event_loop_lag_seconds",
            "Delay of timers in the event loop, measured twice a second; all work of the process"
            " is delayed by as much.",
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
            registry=registry,
        )
        self._round_trips = Histogram(
            "gateway_counters_round_trip_seconds",
            "Answered round trips to Redis, each for all calls sent together.",
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2),
            registry=registry,
        )
        Gauge(
            "gateway_clock_skew_seconds",
            "How far the machine's clock is ahead of the Kubernetes API server's, which all"
            " stored times follow; 0 while they agree to the second.",
            registry=registry,
        ).set_function(lambda: CLOCK.skew)
        self._lost_trips = Counter(
            "gateway_counters_unanswered_total",
            "Round trips to Redis without an answer.",
            registry=registry,
        )
        self._evicts = Gauge(
            "gateway_counters_evict",
            "1 if the maxmemory-policy of Redis is not noeviction, so that it may evict keys; read"
            " each minute.",
            registry=registry,
        )
        self._failures = Counter(
            "gateway_unexpected_failures_total",
            "Unexpected exceptions, by the loop that was restarted or continued. The log line has"
            " the traceback.",
            ("loop",),
            registry=registry,
        )

    def count_failure(self, loop: str) -> None:
        """Count an unexpected exception of a loop."""
        self._failures.labels(loop).inc()

    def note_round_trip(self, seconds: float, answered: bool) -> None:
        """Observe one round trip to Redis."""
        if answered:
            self._round_trips.observe(seconds)
        else:
            self._lost_trips.inc()

    def note_eviction(self, may_evict: bool) -> None:
        """Export whether Redis may evict keys."""
        self._evicts.set(may_evict)

    def follow(self, caches: Mapping[str, Cache[object]]) -> None:
        """Export the state of these caches by kind."""
        self._registry.register(_Watches(caches))

    async def watch_loop(self) -> None:
        """Measure the event loop's lag until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self._lag.observe(max(0.0, loop.time() - due))


class _Watches(Collector):
    """State of the caches, read at each scrape."""

    def __init__(self, caches: Mapping[str, Cache[object]]) -> None:
        self._caches = caches

    def collect(self) -> Iterable[GaugeMetricFamily]:
        silence, entries = self.describe()
        for kind, cache in self._caches.items():
            silence.add_metric((kind,), cache.staleness)
            entries.add_metric((kind,), len(cache.items()))
        return silence, entries

    def describe(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "gateway_watch_silence_seconds",
                "Time since the watch of a kind last received anything, normally at most 3 s;"
                " infinite before the first list.",
                labels=("kind",),
            ),
            GaugeMetricFamily(
                "gateway_watch_objects",
                "Objects of a kind in the process's informer.",
                labels=("kind",),
            ),
        )
