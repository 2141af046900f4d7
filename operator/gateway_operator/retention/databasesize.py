"""Stops intake before the record is full: the work under way needs space to be written to its end.

The size is that of the database file, as etcd's own quota counts it. It shrinks by defragmentation
alone, so intake goes on after that and not as soon as objects are removed.
"""

from collections.abc import Awaitable, Callable

import structlog

from gateway_core.admission.intake import IntakeStop
from gateway_core.kube.client import KubernetesClient
from gateway_operator.metrics import Metrics
from gateway_operator.retention.schedule import Sweep
from gateway_operator.settings import Settings

MARK_SECONDS = 90
"""The mark lapses unless it is set again: three samples may fail before intake goes on."""

_log = structlog.get_logger(__name__)


class DatabaseSize:
    """Compares the size of the record's database with its quota. `quota` is in bytes."""

    def __init__(
        self,
        read_etcd_size: Callable[[], Awaitable[int]],
        stop: IntakeStop,
        metrics: Metrics,
        *,
        quota: int,
        stop_percent: int,
    ) -> None:
        self._read_size = read_etcd_size
        self._stop = stop
        self._metrics = metrics
        self._quota = quota
        self._most = quota * stop_percent // 100
        self._stopped = False
        metrics.record_quota.set(quota)

    async def sample(self) -> int:
        """Set or clear the mark; 1 while intake stops. KubernetesError, CountersUnavailable."""
        size = await self._read_size()
        self._metrics.record_size.set(size)
        stopped = size >= self._most
        if stopped:
            await self._stop.set(MARK_SECONDS)
        else:
            await self._stop.clear()
        if stopped is not self._stopped:
            self._stopped = stopped
            _log.warning("intake by size of the record", stopped=stopped, bytes=size)
        return int(stopped)


def plan_samples(
    kube: KubernetesClient, stop: IntakeStop, metrics: Metrics, settings: Settings
) -> tuple[Sweep, ...]:
    """The sample of the record's size, where its quota is set."""
    if not settings.record_quota_bytes:
        return ()
    space = DatabaseSize(
        kube.read_etcd_size,
        stop,
        metrics,
        quota=settings.record_quota_bytes,
        stop_percent=settings.record_stop_percent,
    )
    return (Sweep("record size", space.sample, settings.record_seconds),)
