"""The limiter of callback attempts: a receiver that hangs delays its own callbacks alone.

Each attempt passes three semaphores. The first is of its account and host; a host whose last
attempt hung gets a single place until it answers again, one that answers late a few. The second is
of the account, so that a host of its own for each task gains it nothing; there the slow hosts have
a semaphore apart from the account's other hosts. The third is of the process, where waiting
accounts take turns. An attempt that waits at one of them holds no place of the later ones.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway_core.concurrency import FairSemaphore

PER_HOST = 8
PER_LATE_HOST = 4
PER_SLOW_HOST = 1
PER_ACCOUNT = 128
PER_ACCOUNT_SLOW = 16
IN_ALL = 1024
MOST_IDLE_HOSTS = 10_000
"""Hosts remembered as slow while nothing is sent to them."""


def _bound(places: int) -> FairSemaphore:
    """A semaphore that gives any free place to the holder that has the fewest."""
    return FairSemaphore(places, alone=places)


def _is_idle(semaphore: FairSemaphore) -> bool:
    return not semaphore.held and not semaphore.waiting


@dataclass(slots=True)
class Lane:
    """The attempts of one account at one host.

    The client sets `is_slow`, whether an attempt takes long, and `answers`, whether it is answered
    then.
    """

    semaphore: FairSemaphore
    is_slow: bool = False
    answers: bool = False

    @property
    def limit(self) -> int:
        """How many attempts may be in flight."""
        if not self.is_slow:
            return PER_HOST
        return PER_LATE_HOST if self.answers else PER_SLOW_HOST


@dataclass(slots=True)
class _Account:
    quick: FairSemaphore = field(default_factory=lambda: _bound(PER_ACCOUNT))
    slow: FairSemaphore = field(default_factory=lambda: _bound(PER_ACCOUNT_SLOW))


class CallbackLimiter:
    """All lanes of the process."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._idle: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._accounts: dict[str, _Account] = {}
        self._all = _bound(IN_ALL)
        self._taken = 0

    @property
    def running(self) -> int:
        """Attempts in flight."""
        return self._all.held

    @property
    def waiting(self) -> int:
        """Attempts that wait for one of the semaphores."""
        return self._taken - self._all.held

    @asynccontextmanager
    async def take(self, account: str, host: str) -> AsyncIterator[Lane]:
        """Hold a place for one attempt; its lane, on which the client notes whether it is slow."""
        lane = self._lanes.setdefault((account, host), Lane(_bound(PER_HOST)))
        self._idle.pop((account, host), None)
        self._taken += 1
        try:
            async with lane.semaphore.take(host):
                semaphores = self._accounts.setdefault(account, _Account())
                # decided now: earlier attempts may have found the host slow meanwhile
                second = semaphores.slow if lane.is_slow else semaphores.quick
                async with second.take(account), self._all.take(account):
                    try:
                        yield lane
                    finally:
                        lane.semaphore.resize(lane.limit)
        finally:
            self._taken -= 1
            self._tidy(account, host, lane)

    def _tidy(self, account: str, host: str, lane: Lane) -> None:
        """Forget what is not in use, except which hosts are slow."""
        semaphores = self._accounts.get(account)
        if semaphores is not None and _is_idle(semaphores.quick) and _is_idle(semaphores.slow):
            self._accounts.pop(account)
        if not _is_idle(lane.semaphore):
            return
        if not lane.is_slow:
            self._lanes.pop((account, host), None)
            return
        self._idle[account, host] = None
        if len(self._idle) > MOST_IDLE_HOSTS:
            self._lanes.pop(self._idle.popitem(last=False)[0])
