"""Prometheus metrics of the API process; the health port serves them."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway_apiserver.middleware.connections import ConnectionTable
from gateway_core.storage.limits import Downloads

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of durations, in seconds."""

_EDGES = (*map(str, BOUNDS), "+Inf")


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
        key = route, method, status, payer
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


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class ApiMetrics:
    """One process's counters in `registry`.

    `classify` gives the class of the account of that name, which is a label where the name may be
    none: there are too many of them. `count_unstored` returns the length of the journal's queue,
    `list_providers` which providers there are and whether each can be used, `list_stops` by reason
    whether requests that create are refused.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        classify: Callable[[str], str] = lambda _: "funded",
        count_unstored: Callable[[], int] = lambda: 0,
        list_providers: Callable[[], Mapping[str, bool]] = dict,
        list_stops: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._classify = classify
        self._requests = RequestSeries()
        self.registry.register(self._requests)
        self._admissions = Counter(
            "gateway_admissions_total",
            "Paid calls by outcome of admission: created, replayed, or accepted for calls without"
            " an object; else the error code, internal_error for a defect, client_gone if the"
            " client left, cut_short at shutdown.",
            ("surface", "outcome"),
            registry=self.registry,
        )
        self._admissions_by: dict[tuple[str, str], Counter] = {}
        self._bytes = Counter(
            "gateway_content_bytes_total",
            "Bytes of contents received from clients and stored (in), or sent to clients (out),"
            " by surface.",
            ("surface", "direction"),
            registry=self.registry,
        )
        self._bytes_by: dict[tuple[str, str], Counter] = {}
        unstored = Gauge(
            "gateway_journal_unstored_records",
            "Ended calls whose charge is not in the object store yet; a kill would lose it.",
            registry=self.registry,
        )
        unstored.set_function(count_unstored)
        self.registry.register(
            _Flags(
                "gateway_provider_usable",
                "Whether this process can use a provider that it calls itself: 0 if its"
                " declaration or Secret prevents it.",
                "provider",
                list_providers,
            )
        )
        self.registry.register(
            _Flags(
                "gateway_intake_stopped",
                "Whether this process refuses creating requests, by reason: maintenance; quota,"
                " etcd is near its quota; refused, etcd has just refused a write for lack of"
                " space.",
                "reason",
                list_stops,
            )
        )

    def count_request(
        self, route: str, method: str, status: int, account: str | None, seconds: float
    ) -> None:
        """Counts one answer that took so long."""
        payer = "none" if account is None else self._classify(account)
        # what a client invents is no label
        known = method if method in _METHODS else "other"
        self._requests.observe(route, known, status, payer, seconds)

    def count_admission(self, surface: str, outcome: str) -> None:
        """Counts one paid call, e.g. of `task` as `created` or `rate_limit_exceeded`."""
        series = surface, outcome
        counter = self._admissions_by.get(series)
        if counter is None:
            # looked up once, as for bytes
            counter = self._admissions_by[series] = self._admissions.labels(*series)
        counter.inc()

    def count_bytes(self, surface: str, direction: Literal["in", "out"], size: int) -> None:
        """Counts bytes that were stored, or sent to a client."""
        series = surface, direction
        counter = self._bytes_by.get(series)
        if counter is None:
            # looked up once: labels cost more than all else that is done with a piece
            counter = self._bytes_by[series] = self._bytes.labels(*series)
        counter.inc(size)


class _Flags(Collector):
    """Gauges of 0 or 1, one for each value of a label, asked when Prometheus asks."""

    def __init__(
        self, name: str, text: str, label: str, read: Callable[[], Mapping[str, bool]]
    ) -> None:
        self._name, self._text, self._label = name, text, label
        self._read = read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        (family,) = self.describe()
        for value, is_set in self._read().items():
            family.add_metric((value,), float(is_set))
        return (family,)

    def describe(self) -> tuple[GaugeMetricFamily]:
        return (GaugeMetricFamily(self._name, self._text, labels=(self._label,)),)


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
