"""Rates of calls that cost nothing: Platform Management, and creates of files (contract §12.1a).

Without the counter store each process counts its part of the limit, for as long as that lasts: no
money depends on these calls, and a leaked key must be revocable during an outage of Redis.
"""

from collections.abc import Callable, Mapping

import structlog

from gateway_apiserver.admission.rates import LocalWindows
from gateway_core.api.errors import TooManyCalls
from gateway_core.billing.counters import Counters, FreeRate
from gateway_core.kube.clock import CLOCK
from gateway_core.redis.link import CountersUnavailable

_TITLES: Mapping[FreeRate, str] = {
    "management": "management calls",
    "storage": "creates of files and uploads",
}
_log = structlog.get_logger(__name__)


class FreeRateLimiter:
    """Counts such calls by account. `limits` are calls in any trailing 60 s."""

    def __init__(
        self,
        counters: Counters,
        limits: Mapping[FreeRate, int],
        *,
        replicas: int = 1,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._counters = counters
        self._limits = limits
        self._local = LocalWindows(replicas, clock)
        self._away = False

    async def count(self, account: str, rate: FreeRate) -> None:
        """Counts one call of the account. Raises TooManyCalls beyond the limit."""
        limit = self._limits[rate]
        try:
            wait = await self._counters.count(account, rate, limit)
        except CountersUnavailable as error:
            if not self._away:
                self._away = True
                _log.warning("free calls are counted by each process", error=str(error))
            wait = self._local.count(account, rate, limit)
        else:
            if self._away:
                self._away = False
                self._local.clear()
        if wait:
            text = f"Rate limit of {limit} {_TITLES[rate]} per minute reached."
            raise TooManyCalls(text, retry_after=wait)
