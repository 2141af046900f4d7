"""Prometheus metrics of requests and connections, in every HTTP process."""

from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway_core.observability.distribution import Distribution
from gateway_core.storage.limits import Downloads
from gateway_web.http1.connections import ConnectionTable

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of durations, in seconds."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def find_surface(route: str) -> str:
    """Return the surface a route is of: its first word, so `task` of `task_create`."""
    return route.partition("_")[0]


class _Series:
    """Requests with the same labels, and how long all of their route took."""

    __slots__ = ("count", "durations")

    def __init__(self, durations: Distribution) -> None:
        self.count = 0
        self.durations = durations


class RequestSeries(Collector):
    """Counts by (route, method, status, class of account), durations by route."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, int, str], _Series] = {}
        self._durations: dict[str, Distribution] = {}

    def observe(self, route: str, method: str, status: int, payer: str, seconds: float) -> None:
        """Count one response. Labels must have few values: each new set of them is kept."""
        # what a client invents is no label
        key = route, method if method in _METHODS else "other", status, payer
        series = self._series.get(key)
        if series is None:
            durations = self._durations.setdefault(route, Distribution(BOUNDS))
            series = self._series[key] = _Series(durations)
        series.count += 1
        series.durations.observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Collect the figures counted so far."""
        requests, times = self.describe()
        for (route, method, status, payer), series in self._series.items():
            labels = (find_surface(route), route, method, str(status), payer)
            requests.add_metric(labels, series.count)
        for route, durations in self._durations.items():
            named = find_surface(route), route
            times.add_metric(named, durations.list_buckets(), durations.total)
        return requests, times

    def describe(self) -> tuple[CounterMetricFamily, HistogramMetricFamily]:
        """Return the names, without figures."""
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


class AdmissionCounter(Collector):
    """Counts paid calls."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def count(self, surface: str, outcome: str) -> None:
        """Count one paid call, e.g. of `task` as `created` or `rate_limit_exceeded`."""
        series = surface, outcome
        self._counts[series] = self._counts.get(series, 0) + 1

    def collect(self) -> Iterable[Metric]:
        """Collect the figures counted so far."""
        (family,) = self.describe()
        for series, count in self._counts.items():
            family.add_metric(series, count)
        return (family,)

    def describe(self) -> tuple[CounterMetricFamily]:
        """Return the name, without figures."""
        return (
            CounterMetricFamily(
                "gateway_admissions_total",
                "Paid calls by outcome of admission: created, replayed, or accepted for calls"
                " without an object; else the error code, internal_error for a defect, client_gone"
                " if the client left, cut_short at shutdown.",
                labels=("surface", "outcome"),
            ),
        )


class ConnectionMetrics(Collector):
    """Read from the tables when Prometheus asks."""

    def __init__(self, table: ConnectionTable, downloads: Downloads) -> None:
        self._table = table
        self._downloads = downloads

    def collect(self) -> Iterable[Metric]:
        """Return the present figures."""
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
        """Return the metrics without figures."""
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
