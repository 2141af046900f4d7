"""Prometheus metrics of the API process; the health port serves them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway_web.middleware.metrics import AdmissionCounter, RequestSeries


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
        admissions = AdmissionCounter()
        self.registry.register(admissions)
        self.count_admission = admissions.count
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
        self._requests.observe(route, method, status, payer, seconds)

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
