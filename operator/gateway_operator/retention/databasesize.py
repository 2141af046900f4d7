"""Stops intake before the record is full: work in progress needs space to be written to its end.

The size is that of the database file, as etcd's own quota counts it. It shrinks by defragmentation
alone, so intake resumes after that and not as soon as objects are removed.
"""

from collections.abc import Awaitable, Callable

import structlog

from gateway_core.admission.intake import IntakeStop
from gateway_operator.metrics import Metrics

MARK_SECONDS = 90
"""The mark expires unless it is set again: three samples may fail before intake resumes."""

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
        """Set or clear the mark; 1 where intake is stopped."""
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
