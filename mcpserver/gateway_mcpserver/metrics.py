"""Prometheus metrics of the MCP process; the health port serves them."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway_web.middleware.metrics import AdmissionCounter, RequestSeries


class McpMetrics:
    """One process's counters in `registry`.

    `classify` gives the class of the account of that name, `count_waits` the calls that wait.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        classify: Callable[[str], str] = lambda _: "funded",
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._classify = classify
        self._requests = RequestSeries()
        self.registry.register(self._requests)
        admissions = AdmissionCounter()
        self.registry.register(admissions)
        self.count_admission = admissions.count
        self._calls = Counter(
            "gateway_mcp_tool_calls_total",
            "Calls of tools by outcome: ok, or the error code; internal_error for a defect.",
            ("tool", "outcome"),
            registry=self.registry,
        )
        self._waits = Counter(
            "gateway_mcp_waits_total",
            "Calls of create_task that waited, by what ended the wait: completed, deadline,"
            " client_gone, cancelled, draining, revoked, cut_short; not_found if the task was"
            " removed; concurrency_limit for those that found no room.",
            ("outcome",),
            registry=self.registry,
        )
        self._waiting = Gauge(
            "gateway_mcp_waiting", "Calls of create_task that wait now.", registry=self.registry
        )

    def follow(self, count_waits: Callable[[], int]) -> None:
        """Show `count_waits` as the number of waiting calls."""
        self._waiting.set_function(count_waits)

    def count_request(
        self, route: str, method: str, status: int, account: str | None, seconds: float
    ) -> None:
        """Count one answer that took so long."""
        payer = "none" if account is None else self._classify(account)
        self._requests.observe(route, method, status, payer, seconds)

    def count_call(self, tool: str, outcome: str) -> None:
        """Count one call of a tool."""
        self._calls.labels(tool, outcome).inc()

    def count_wait(self, outcome: str) -> None:
        """Count one wait that has ended, or did not begin."""
        self._waits.labels(outcome).inc()
