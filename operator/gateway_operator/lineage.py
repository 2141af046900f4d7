"""The heartbeat of the operator that owns shard 0, which continues the record's lineage.

Redis has the latest token too. Where the record lacks that one, etcd was restored, perhaps while no
process ran, and Redis is emptied: it holds sums of charges that no longer exist. Where Redis has an
older one, the name leads back to a server that was away: sums of charges are missing.
"""

import structlog

from gateway_core.billing.redis_counters import Counters
from gateway_core.kube.lineage import Lineage, RecordRestored, end_process
from gateway_core.redis.link import CountersUnavailable, RedisAdapter

_log = structlog.get_logger(__name__)


class RedisLineage(RedisAdapter):
    """The token of the record from which the content of Redis was made.

    Methods raise CountersUnavailable.
    """

    async def read(self) -> str:
        """Return the token; empty where there is none."""
        token = await self._ask(self._redis.get(self._key))
        return "" if token is None else str(token.decode())

    async def write(self, token: str) -> None:
        """Replace the token."""
        await self._ask(self._redis.set(self._key, token))

    async def clear(self) -> None:
        """Remove all keys of the gateway but the token, as a loss of Redis does."""
        await self._remove(self._head)

    @property
    def _key(self) -> str:
        return f"{self._head.removesuffix('/')}}}:lineage"


class LineageHeartbeat:
    """Renews the Lease with one more token, and compares Redis with the tokens."""

    def __init__(
        self, lineage: Lineage, redis: RedisLineage, counters: Counters, holder: str
    ) -> None:
        self._lineage = lineage
        self._redis = redis
        self._counters = counters
        self._holder = holder
        self._written = ""

    async def renew(self) -> None:
        """Renew once; end the process where etcd was restored. KubernetesError."""
        try:
            await self._compare(await self._lineage.extend(self._holder))
        except RecordRestored as error:
            _log.error("etcd was restored: ending, to read all anew", error=str(error))
            end_process()
        except CountersUnavailable as error:
            _log.info("the lineage of Redis cannot be compared", error=str(error))

    async def _compare(self, tokens: list[str]) -> None:
        known, written = await self._redis.read(), self._written
        is_expected = not known or known == written
        # another operator may have been faster, for as long as both run
        if not is_expected and known not in tokens and known not in await self._lineage.read():
            _log.error("etcd was restored: emptying Redis, to rebuild it from the record")
            await self._redis.clear()
        elif not is_expected and known in tokens[: _find(written, tokens)]:
            _log.warning("Redis has the content of an earlier time: all accounts are rebuilt")
            for account in await self._counters.list_accounts():
                await self._counters.mark_stale(account)
        await self._redis.write(tokens[-1])
        self._written = tokens[-1]


def _find(token: str, tokens: list[str]) -> int:
    return tokens.index(token) if token in tokens else 0
