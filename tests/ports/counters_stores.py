"""The two counters under test behind one face: what a test must do to the store itself."""

import asyncio
import uuid
from typing import Protocol

from redis import Redis

from gateway_core.adapters.redis.counters import RedisCounters
from gateway_core.ports.counters import Counters, Ledger
from tests.fakes.counters import FakeCounters
from tests.servers.redis_server import RedisServer


class CountersStore(Protocol):
    """A store of counters whose clock can be put forward and whose memory can be lost."""

    @property
    def counters(self) -> Counters:
        """The counters under test."""

    def advance(self, account: str, seconds: float) -> None:
        """Makes what is in the account's counters `seconds` older."""

    def lose(self) -> None:
        """Empties the store."""

    async def close(self) -> None:
        """Frees connections."""


class FakeStore:
    """The counters in memory."""

    def __init__(self) -> None:
        self.counters = FakeCounters()

    def advance(self, account: str, seconds: float) -> None:
        self.counters.now += seconds

    def lose(self) -> None:
        self.counters.lose()

    async def close(self) -> None:
        await asyncio.sleep(0)


class RedisStore:
    """The counters on a real server. Its clock stands for nobody, so the past is moved instead."""

    def __init__(self, server: RedisServer) -> None:
        self.counters = RedisCounters(server.url)
        self.direct = Redis(port=server.port, decode_responses=True)

    def advance(self, account: str, seconds: float) -> None:
        prefix, micros = f"gw:{{{account}}}:", round(seconds * 1_000_000)
        times = self.direct.lrange(prefix + "rate", 0, -1)
        if times:
            self.direct.delete(prefix + "rate")
            self.direct.rpush(prefix + "rate", *(int(at) - micros for at in times))
        for task, value in self.direct.hgetall(prefix + "holds").items():
            amount, since = str(value).split(":")
            self.direct.hset(prefix + "holds", task, f"{amount}:{int(since) - micros}")
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
