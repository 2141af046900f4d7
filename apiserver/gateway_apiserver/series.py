"""Requests counted and timed, for Prometheus; used by `metrics` alone.

prometheus_client's own counter and histogram cost a poll several times what this does: they take a
lock for each figure, and everything here is in one event loop.
"""

from bisect import bisect_left
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

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
        """Takes in one answer. The words must be few: each new set of them is kept for ever."""
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
                "Requests answered. Status 499 is a client that left before it was answered;"
                " account_class is unlimited, funded, or none where nobody was recognized.",
                labels=("surface", "route", "method", "status", "account_class"),
            ),
            HistogramMetricFamily(
                "gateway_http_request_duration_seconds",
                "From a request's head to the end of its answer.",
                labels=("surface", "route"),
            ),
        )
