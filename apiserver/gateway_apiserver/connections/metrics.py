"""Metrics of client connections, bodies and downloads; registered by `compose`."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway_apiserver.connections.downloads import Downloads
from gateway_apiserver.connections.table import ConnectionTable


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
            GaugeMetricFamily(
                "gateway_connections", "Open connections on the port that clients reach."
            ),
            CounterMetricFamily(
                "gateway_connections_over_bound",
                "Connections that a bound on their number ended: refused with 503, or evicted for a"
                " new one while they waited for a request.",
                labels=("outcome",),
            ),
            GaugeMetricFamily("gateway_downloads", "Downloads under way."),
            CounterMetricFamily(
                "gateway_downloads_refused",
                "Downloads that a bound on their number refused with 503.",
            ),
        )
