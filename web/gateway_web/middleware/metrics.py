"""Prometheus metrics of requests and connections, in every HTTP process."""

from bisect import bisect_left
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway_core.storage.limits import Downloads
from gateway_web.middleware.connections import ConnectionTable

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of durations, in seconds."""

_EDGES = (*map(str, BOUNDS), "+Inf")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def find_surface(route: str) -> str:
    """The surface a route is of: its first word, so `task` of `task_create`."""
    return route.partition("_")[0]


class _Durations:
    """How long the requests of a route took."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * len(_EDGES)
        self.total = 0.0


class _Series:
    """Requests with the same labels."""

    __slots__ = ("count", "durations")

    def __init__(self, durations: _Durations) -> None:
        self.count = 0
        self.durations = durations


class RequestSeries(Collector):
    """Counts by (route, method, status, class of account), durations by route."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, int, str], _Series] = {}
        self._durations: dict[str, _Durations] = {}

    def observe(self, route: str, method: str, status: int, payer: str, seconds: float) -> None:
        """Count one response. Labels must have few values: each new set of them is kept."""
        # what a client invents is no label
        key = route, method if method in _METHODS else "other", status, payer
        series = self._series.get(key)
        if series is None:
            durations = self._durations.setdefault(route, _Durations())
            series = self._series[key] = _Series(durations)
        series.count += 1
        durations = series.durations
        durations.buckets[bisect_left(BOUNDS, seconds)] += 1
        durations.total += seconds

    def collect(self) -> Iterable[Metric]:
        """What was counted so far."""
        requests, times = self.describe()
        for (route, method, status, payer), series in self._series.items():
            labels = (find_surface(route), route, method, str(status), payer)
            requests.add_metric(labels, series.count)
        for route, durations in self._durations.items():
            so_far, buckets = 0, list[tuple[str, float]]()
            for edge, count in zip(_EDGES, durations.buckets, strict=True):
                so_far += count
                buckets.append((edge, so_far))
            times.add_metric((find_surface(route), route), buckets, durations.total)
        return requests, times

    def describe(self) -> tuple[CounterMetricFamily, HistogramMetricFamily]:
        """The names, without figures."""
        return (
            CounterMetricFamily(
                "gateway_http_requests_total",
                "Answered requests. Status 499 is a client that left before the response;"
                " account_class is unlimited, funded, or none without authentication.",
                labels=("surface", "route", "method", "status", "account_class"),
            ),
            HistogramMetricFamily(
                "gateway_http_request_duration_seconds",
                "Time from a request's head to the end of its response.",
                labels=("surface", "route"),
            ),
        )


class AdmissionCounter:
    """Counts paid calls in `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._admissions = Counter(
            "gateway_admissions_total",
            "Paid calls by outcome of admission: created, replayed, or accepted for calls without"
            " an object; else the error code, internal_error for a defect, client_gone if the"
            " client left, cut_short at shutdown.",
            ("surface", "outcome"),
            registry=registry,
        )
        self._by_labels: dict[tuple[str, str], Counter] = {}

    def count(self, surface: str, outcome: str) -> None:
        """Count one paid call, e.g. of `task` as `created` or `rate_limit_exceeded`."""
        series = surface, outcome
        counter = self._by_labels.get(series)
        if counter is None:
            # looked up once: labels cost more than the count
            counter = self._by_labels[series] = self._admissions.labels(*series)
        counter.inc()


class ConnectionMetrics(Collector):
    """Read from the tables when Prometheus asks."""

    def __init__(self, table: ConnectionTable, downloads: Downloads) -> None:
        self._table = table
        self._downloads = downloads

    def collect(self) -> Iterable[Metric]:
        """The present figures."""
        connections, ended, downloads, refused = self.describe()
        connections.add_metric((), len(self._table))
        ended.add_metric(("refused",), self._table.refused)
        ended.add_metric(("evicted",), self._table.evicted)
        downloads.add_metric((), len(self._downloads))
        refused.add_metric((), self._downloads.refused)
        return connections, ended, downloads, refused

    def describe(
        self,
    ) -> tuple[GaugeMetricFamily, CounterMetricFamily, GaugeMetricFamily, CounterMetricFamily]:
        """The metrics without figures."""
        return (
            GaugeMetricFamily("gateway_connections", "Open connections on the client port."),
            CounterMetricFamily(
                "gateway_connections_over_bound",
                "Connections ended by the limit on their number: refused with 503, or evicted for"
                " a new one while idle.",
                labels=("outcome",),
            ),
            GaugeMetricFamily("gateway_downloads", "Running downloads."),
            CounterMetricFamily(
                "gateway_downloads_refused",
                "Downloads refused with 503 by the limit on their number.",
            ),
        )
