"""A heartbeat through the watch: a Lease is renewed, and must come back as an event.

If the Kubernetes API takes renewals but kopf's feed does not show them, the feed is dead however
alive the process looks; it ends, and whoever supervises it starts it anew. A Lease, since nobody
who lists tasks should have to see heartbeats among them.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import structlog

from gateway_core.kube.errors import KubernetesError

_log = structlog.get_logger(__name__)

Renew = Callable[[], Awaitable[None]]


class Heartbeat:
    """Renews every `seconds`; ends the process after three that were renewed and not heard.

    Three in a row: after an outage of the Kubernetes API the watch has its time to come back.
    """

    def __init__(self, renew: Renew, seconds: float) -> None:
        self._renew = renew
        self._seconds = seconds
        self._heard_at: float | None = None
        self._unheard = 0
        self._heard = asyncio.Event()

    @property
    def age(self) -> float:
        """Seconds since the last beat was heard; infinite before the first."""
        return float("inf") if self._heard_at is None else time.monotonic() - self._heard_at

    def hear(self, _renew_time: str) -> None:
        """Takes note of a beat that came through the watch."""
        self._heard_at = time.monotonic()
        self._unheard = 0
        self._heard.set()

    async def wait_heard(self) -> None:
        """Returns once a further beat has come through the watch: only then is it known to run."""
        self._heard.clear()
        await self._heard.wait()

    async def run(self) -> None:
        """Beats until cancelled."""
        while True:
            try:
                await self._renew()
                self._unheard += 1
            except KubernetesError as error:
                self._unheard = 0
                _log.info("heartbeat not renewed", error=str(error))
            await asyncio.sleep(self._seconds)
            if self._unheard >= 3:
                _log.error("the watch is dead: heartbeats are renewed and not shown; ending")
                os._exit(1)
