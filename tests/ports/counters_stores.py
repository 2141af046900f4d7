"""The two counters under test behind one face: what a test must do to the store itself."""

import asyncio
import re
import uuid
from datetime import UTC, datetime
from typing import Protocol

from redis import Redis

from gateway_core.billing.counters import Ledger
from gateway_core.billing.redis_counters import Counters
from tests.fakes.counters import FakeCounters
from tests.servers.server import RedisServer

START = 1_800_000_000.25
"""2027-01-15T08:00:00Z, a Friday, and a bit."""


class CountersStore(Protocol):
    """A store of counters whose clock can be put forward and whose memory can be lost."""

    @property
    def counters(self) -> Counters:
        """The counters under test."""

    def advance(self, account: str, seconds: float) -> None:
        """Makes what is in the account's counters `seconds` older."""

    @property
    def now(self) -> datetime:
        """When it is by the clock that windows turn by."""

    def set_clock(self, now: datetime) -> None:
        """Sets the clock that windows turn by."""

    def lose(self) -> None:
        """Empties the store."""

    async def close(self) -> None:
        """Frees connections."""


class FakeStore:
    """The counters in memory."""

    def __init__(self) -> None:
        self.counters = FakeCounters(START)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.counters.now, UTC)

    def set_clock(self, now: datetime) -> None:
        self.counters.now = now.timestamp()

    def advance(self, account: str, seconds: float) -> None:
        self.counters.now += seconds

    def lose(self) -> None:
        self.counters.lose()

    async def close(self) -> None:
        await asyncio.sleep(0)


class RedisStore:
    """The counters on a real server. Its clock stands for nobody, so the past is moved instead.

    Windows of spending turn by a clock of the test's.
    """

    def __init__(self, server: RedisServer) -> None:
        self._now = START
        self.counters = Counters(server.url, clock=lambda: self._now)
        self.direct = Redis(port=server.port, decode_responses=True)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._now, UTC)

    def set_clock(self, now: datetime) -> None:
        self._now = now.timestamp()

    def advance(self, account: str, seconds: float) -> None:
        prefix, micros = f"gw:{{default/{account}}}:", round(seconds * 1_000_000)
        self._now += seconds
        for rate in self.direct.scan_iter(f"{prefix}rate*"):
            times = self.direct.lrange(rate, 0, -1)
            self.direct.delete(rate)
            self.direct.rpush(rate, *(int(at) - micros for at in times))
        for task, value in self.direct.hgetall(prefix + "holds").items():
            amount, since, *subjects = re.split(r"[: ]", str(value))
            moved = " ".join([f"{amount}:{int(since) - micros}", *subjects])
            self.direct.hset(prefix + "holds", task, moved)
        for task, since in self.direct.zrange(prefix + "charged", 0, -1, withscores=True):
            self.direct.zadd(prefix + "charged", {task: since - micros})
        left = self.direct.ttl(prefix + "rebuild")
        if left > 0:
            self.direct.expire(prefix + "rebuild", round(left - seconds))

    def lose(self) -> None:
        self.direct.flushall()

    async def close(self) -> None:
        self.direct.close()
        await self.counters.close()


def name_account() -> str:
    """An account that no other test uses."""
    return f"acct-{uuid.uuid4().hex[:12]}"


async def rebuild(counters: Counters, account: str, ledger: Ledger | None = None) -> None:
    """Makes the account's money current."""
    token = await counters.begin_rebuild(account)
    assert token is not None
    assert await counters.finish_rebuild(account, token, ledger or Ledger(charged=0))


def age_keys(server: RedisServer, namespace: str, seconds: float) -> None:
    """Bring the keys of a namespace so much nearer to their expiry."""
    with Redis(port=server.port) as direct:
        for key in direct.scan_iter(f"*{namespace}*"):
            direct.pexpire(key, direct.pttl(key) - round(seconds * 1000))
