"""Counters of the API process for Prometheus; `GET /metrics` shows them."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST


class ApiMetrics:
    """One process's counters, in a registry of their own."""

    def __init__(self) -> None:
        # a time of creation for each series would double their number
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "gateway_http_requests",
            "Requests answered, by route and status.",
            ("route", "status"),
            registry=self._registry,
        )
        self._admissions = Counter(
            "gateway_admissions",
            "Paid calls, by what became of them at the door.",
            ("decision",),
            registry=self._registry,
        )
        self._known: dict[tuple[str, int], Counter] = {}

    def count_request(self, route: str, status: int) -> None:
        """Counts one answer."""
        # labels() costs more than the rest of a poll's bookkeeping together
        counter = self._known.get((route, status))
        if counter is None:
            counter = self._requests.labels(route, str(status))
            self._known[route, status] = counter
        counter.inc()

    def count_admission(self, decision: str) -> None:
        """Counts one paid call, e.g. as `created`, `replayed` or `rate_limit_exceeded`."""
        self._admissions.labels(decision).inc()

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self._registry)
