"""`subscriptions/listen`: streams of changes, acknowledged first; the lists here never change.

So a stream has its acknowledgement, heartbeats, and its result when it ends: after five minutes,
when the client leaves, or when the process drains. Clients subscribe again.
"""

import asyncio
from typing import Any

from gateway_core.fair_semaphore import FairSemaphore
from gateway_mcpserver.protocol.documents import SUBSCRIPTION_META_KEY, complete
from gateway_mcpserver.protocol.eras import Era
from gateway_mcpserver.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Message,
    RpcError,
    render_result,
)
from gateway_mcpserver.protocol.streaming import HEARTBEAT_SECONDS, Reply
from gateway_mcpserver.waiting import FindRefusal, Stop, Wait
from gateway_web.http1.exchange import Exchange

STREAM_SECONDS = 300.0
MOST_STREAMS = 500
MOST_ACCOUNT_STREAMS = 100


class Subscriptions:
    """The streams of one process."""

    def __init__(self) -> None:
        self._semaphore = FairSemaphore(
            MOST_STREAMS, alone=MOST_ACCOUNT_STREAMS, per_holder=MOST_ACCOUNT_STREAMS
        )
        self._open = set[Wait]()
        self._draining = False

    async def serve(
        self,
        message: Message,
        account: str,
        client: Exchange,
        reply: Reply,
        find_refusal: FindRefusal,
    ) -> None:
        """Serve one stream until `find_refusal` finds that its credential is refused. RpcError."""
        assert message.id is not None
        if not isinstance(message.params.get("notifications"), dict):
            raise RpcError(INVALID_PARAMS, "The notifications must be an object.")
        if not self._semaphore.has_room(account):
            raise RpcError(INTERNAL_ERROR, "Too many subscriptions are open.", status=200)
        meta: dict[str, Any] = {SUBSCRIPTION_META_KEY: message.id}
        wait = Wait()
        if self._draining:
            wait.end(Stop.DRAINING)
        self._semaphore.acquire_nowait(account)
        self._open.add(wait)
        client.on_gone = lambda: wait.end(Stop.CLIENT_GONE)
        if client.is_gone:
            wait.end(Stop.CLIENT_GONE)
        try:
            # nothing is honoured: no list changes while a process runs
            acknowledged = {"notifications": {}, "_meta": meta}
            await reply.notify("notifications/subscriptions/acknowledged", acknowledged)
            clock = asyncio.get_running_loop().time
            deadline = clock() + STREAM_SECONDS
            while wait.stop is None and clock() < deadline:
                if not await wait.sleep(min(HEARTBEAT_SECONDS, deadline - clock())):
                    if await find_refusal() is not None:
                        break
                    await reply.beat()
            result = complete(Era.MODERN, {"_meta": meta})
            await reply.finish(render_result(message.id, result))
        finally:
            self._open.discard(wait)
            self._semaphore.release(account)

    def end_all(self) -> None:
        """End all streams: the process drains."""
        self._draining = True
        for wait in self._open:
            wait.end(Stop.DRAINING)
