"""When each key was last used: noted in memory at every authenticated request, reported in batches.

Each process reports what is new to the counters every 20 s, so that another replica's answer is at
most 60 s late (contract §9.0), and once a minute all that it has seen within the hour, so that a
loss of Redis is made good. The operator copies it into the keys' status (decision 36).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from gateway_core.billing.redis_counters import Counters
from gateway_core.kube.clock import CLOCK
from gateway_core.redis.link import CountersUnavailable

REPORT_SECONDS = 20.0
REPORTS_TO_ALL = 3
"""Every third report repeats all uses that are remembered."""
REMEMBERED_SECONDS = 3600.0
"""Longer than the operator takes to copy what the counters have."""

_log = structlog.get_logger(__name__)


class KeyUse:
    """Last uses of keys, by account and object name. `clock` gives Unix seconds."""

    def __init__(self, counters: Counters, clock: Callable[[], float] = CLOCK.time) -> None:
        self._counters = counters
        self._clock = clock
        self._seen: dict[str, dict[str, float]] = {}
        self._reported_at = 0.0
        self._reports = 0

    def note(self, account: str, key: str) -> None:
        """A request was authenticated with the key. One per key is kept."""
        self._seen.setdefault(account, {})[key] = self._clock()

    async def find(self, account: str, keys: Iterable[str]) -> Mapping[str, float]:
        """Unix seconds of the last known use of each key that was used recently."""
        own, wanted = self._seen.get(account, {}), tuple(keys)
        try:
            found = dict(await self._counters.read_used(account, wanted))
        except CountersUnavailable:
            found = {}
        for key in wanted:
            if key in own:
                found[key] = max(own[key], found.get(key, 0.0))
        return found

    async def report(self) -> None:
        """Report new uses, or all, to the counters; repeat a report that fails."""
        now = self._clock()
        self._forget(now - REMEMBERED_SECONDS)
        is_all = self._reports % REPORTS_TO_ALL == 0
        since = 0.0 if is_all else self._reported_at
        try:
            for account, used in list(self._seen.items()):
                new = {key: at for key, at in used.items() if at >= since}
                if new:
                    await self._counters.note_used(account, new)
        except CountersUnavailable as error:
            _log.warning("last uses of keys were not reported", error=str(error))
            return
        self._reported_at = now
        self._reports += 1

    async def run(self) -> None:
        """Reports until cancelled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            await self.report()

    def _forget(self, before: float) -> None:
        for account, used in list(self._seen.items()):
            kept = {key: at for key, at in used.items() if at >= before}
            if kept:
                self._seen[account] = kept
            else:
                del self._seen[account]
