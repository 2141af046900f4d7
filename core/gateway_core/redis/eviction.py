"""True if Redis may evict keys, which costs rebuilds, sessions and rates where it does."""

import asyncio
from collections.abc import Callable

import structlog

from gateway_core.redis.link import CountersUnavailable, RedisAdapter

SAFE_POLICY = "noeviction"
READ_SECONDS = 60.0
RETRY_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class EvictionWatch(RedisAdapter):
    """Reads the eviction policy each minute; one for a process."""

    async def read_policy(self) -> str:
        """Return the policy; empty where the server does not report one. CountersUnavailable."""
        # managed servers often forbid CONFIG
        info = await self._ask(self._redis.info("memory"))
        return str(info.get("maxmemory_policy", ""))

    async def run(self, note: Callable[[bool], None]) -> None:
        """Call `note` with whether Redis may evict keys, and log a change, until cancelled."""
        known = SAFE_POLICY
        while True:
            try:
                policy = await self.read_policy()
            except CountersUnavailable as error:
                _log.info("the eviction policy of Redis cannot be read", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            note(policy not in ("", SAFE_POLICY))
            if policy not in ("", known):
                known = policy
                log = _log.info if policy == SAFE_POLICY else _log.warning
                log("eviction policy of Redis", policy=policy, wanted=SAFE_POLICY)
            await asyncio.sleep(READ_SECONDS)
