"""Cancellations of legacy calls: the replica that receives one is seldom the one that waits.

It is published over Redis to all replicas, and stored nowhere. Without Redis it ends the waits of
the process that received it, and others go on until their task or their deadline.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import structlog

from gateway_core.redis.link import CountersUnavailable, RedisAdapter
from gateway_core.redis.options import RedisOptions
from gateway_mcpserver.protocol.messages import RequestId

Cancel = Callable[[str, RequestId], None]
"""Ends the waits of a credential's requests of this id."""

RETRY_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class Cancellations(RedisAdapter):
    """One for a process."""

    def __init__(self, server: RedisOptions | str, **options: Any) -> None:
        super().__init__(server, **options)
        self._channel = f"{self._head}mcp}}:cancellations"
        self._cancel: Cancel = _ignore

    def subscribe(self, cancel: Cancel) -> None:
        """Call `cancel` for each cancellation of this or another replica."""
        self._cancel = cancel

    async def publish(self, caller: str, request_id: RequestId) -> None:
        """Cancel at this replica, then at all others that can be reached."""
        self._cancel(caller, request_id)
        message = orjson.dumps([caller, request_id])
        try:
            await self._ask(self._redis.publish(self._channel, message))
        except CountersUnavailable as error:
            _log.info("a cancellation reaches no other replica", error=str(error))

    async def follow(self) -> None:
        """Pass on what other replicas publish, until cancelled."""
        while True:
            try:
                await self.listen(self._channel, self._receive)
            except CountersUnavailable as error:
                _log.info("cancellations of other replicas cannot be read", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    def _receive(self, message: bytes) -> None:
        caller, request_id = orjson.loads(message)
        self._cancel(caller, request_id)


def _ignore(_caller: str, _request_id: RequestId) -> None:
    """Before the first subscription nothing waits."""
