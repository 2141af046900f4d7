"""The callback client: one attempt, from its place in the limiter to the receiver's answer.

A receiver that hangs delays its own callbacks alone. Each attempt passes three semaphores. The
first is of its account and host; a host whose last attempt hung gets a single place until it
answers again, one that answers late a few. The second is of the account, so that a host of its own
for each task gains it nothing; there the slow hosts have a semaphore apart from the account's other
hosts. The third is of the process, where waiting accounts take turns. An attempt that waits at one
of them holds no place of the later ones.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from gateway_core.callbacks.client import CallbackSender
from gateway_core.callbacks.schedule import SCHEDULE
from gateway_core.callbacks.signing import make_headers
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.tasks.delivery import Outcome
from gateway_operator.callbacks.signing import Keyring

PER_HOST = 8
PER_LATE_HOST = 4
PER_SLOW_HOST = 1
PER_ACCOUNT = 128
PER_ACCOUNT_SLOW = 16
IN_ALL = 1024
MOST_IDLE_HOSTS = 10_000
"""Hosts remembered as slow while nothing is sent to them."""


def _bound(places: int) -> FairSemaphore:
    """Return a semaphore that gives any free place to the holder that has the fewest."""
    return FairSemaphore(places, alone=places)


def _is_idle(semaphore: FairSemaphore) -> bool:
    return not semaphore.held and not semaphore.waiting


@dataclass(slots=True)
class Receiver:
    """A host that receives the callbacks of one account.

    The client sets `is_slow`, whether an attempt takes long, and `answers`, whether it is answered
    then.
    """

    semaphore: FairSemaphore
    is_slow: bool = False
    answers: bool = False

    @property
    def limit(self) -> int:
        """Number of attempts that may be in flight."""
        if not self.is_slow:
            return PER_HOST
        return PER_LATE_HOST if self.answers else PER_SLOW_HOST


@dataclass(slots=True)
class _Account:
    quick: FairSemaphore = field(default_factory=lambda: _bound(PER_ACCOUNT))
    slow: FairSemaphore = field(default_factory=lambda: _bound(PER_ACCOUNT_SLOW))


class CallbackLimiter:
    """All receivers of the process."""

    def __init__(self) -> None:
        self._receivers: dict[tuple[str, str], Receiver] = {}
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
    async def take(self, account: str, host: str) -> AsyncIterator[Receiver]:
        """Hold a place for one attempt; the client notes on the receiver whether it is slow."""
        receiver = self._receivers.setdefault((account, host), Receiver(_bound(PER_HOST)))
        self._idle.pop((account, host), None)
        self._taken += 1
        try:
            async with receiver.semaphore.take(host):
                semaphores = self._accounts.setdefault(account, _Account())
                # decided now: earlier attempts may have found the host slow meanwhile
                second = semaphores.slow if receiver.is_slow else semaphores.quick
                async with second.take(account), self._all.take(account):
                    try:
                        yield receiver
                    finally:
                        receiver.semaphore.resize(receiver.limit)
        finally:
            self._taken -= 1
            self._tidy(account, host, receiver)

    def _tidy(self, account: str, host: str, receiver: Receiver) -> None:
        """Forget what is not in use, except which hosts are slow."""
        semaphores = self._accounts.get(account)
        if semaphores is not None and _is_idle(semaphores.quick) and _is_idle(semaphores.slow):
            self._accounts.pop(account)
        if not _is_idle(receiver.semaphore):
            return
        if not receiver.is_slow:
            self._receivers.pop((account, host), None)
            return
        self._idle[account, host] = None
        if len(self._idle) > MOST_IDLE_HOSTS:
            self._receivers.pop(self._idle.popitem(last=False)[0])


@dataclass(frozen=True, slots=True)
class Message:
    """A callback's body, its id, and the account and URL it is for."""

    account: str
    url: str
    id: str
    body: bytes


class CallbackClient:
    """Sends signed callbacks, bounded by a limiter.

    `schedule` has the seconds before each attempt, the first of which is 0.
    """

    def __init__(
        self,
        sender: CallbackSender,
        keyring: Keyring,
        now: Callable[[], datetime],
        schedule: tuple[float, ...] = SCHEDULE,
    ) -> None:
        self._sender = sender
        self._keyring = keyring
        self._now = now
        self.schedule = schedule
        self.limiter = CallbackLimiter()

    async def check_keys(self, account: str) -> None:
        """Raise NoKey where nothing can be signed for the account. RecordUnavailable."""
        await self._keyring.find(account)

    @asynccontextmanager
    async def wait_turn(self, account: str, url: str) -> AsyncIterator[Receiver]:
        """Hold a place for the URL's host. What is known of the task may be outdated by then."""
        async with self.limiter.take(account, _host_of(url)) as receiver:
            yield receiver

    async def send(self, message: Message, receiver: Receiver) -> Outcome:
        """Make one attempt, signed as of now. NoKey, KubernetesUnavailable: nothing was sent."""
        keys = await self._keyring.find(message.account)
        timestamp = int(self._now().timestamp())
        headers = make_headers(keys, message.id, timestamp, message.body)
        # an account's slow hosts take no connections from its other hosts or from other accounts
        share = message.account, receiver.is_slow
        answer = await self._sender.send(message.url, headers, message.body, share)
        receiver.is_slow, receiver.answers = answer.is_costly, answer.status is not None
        return Outcome(self._now(), answer.status, answer.text, answer.retry_after)


def _host_of(url: str) -> str:
    """Host and port as written in the URL, in lower case; the whole text if it is no URL."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower() or url
    except ValueError:
        return url
