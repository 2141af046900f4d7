"""A heartbeat through the watch: a Lease is renewed, and must come back as an event.

If the API server accepts renewals but kopf's watch does not show them, the watch is dead although
the process looks alive: it exits, and the kubelet restarts it. A Lease, so that lists of tasks
contain no heartbeats.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from gateway_core.kube.errors import KubernetesError

_log = structlog.get_logger(__name__)

Renew = Callable[[], Awaitable[None]]


@dataclass(eq=False)
class Heartbeat:
    """Renews every `seconds`; exits the process after three renewals in a row without an event.

    Three, so that the watch has time to recover after an outage of the API server.
    """

    renew: Renew
    seconds: float
    _heard_at: float | None = field(default=None, init=False)
    _unheard: int = field(default=0, init=False)
    _heard: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def age(self) -> float:
        """Seconds since the last heartbeat was heard; infinite before the first."""
        return float("inf") if self._heard_at is None else time.monotonic() - self._heard_at

    def hear(self, _renew_time: str) -> None:
        """Note a heartbeat that came through the watch."""
        self._heard_at = time.monotonic()
        self._unheard = 0
        self._heard.set()

    async def wait_heard(self) -> None:
        """Return once another heartbeat has come through the watch, which proves that it runs."""
        self._heard.clear()
        await self._heard.wait()

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            try:
                await self.renew()
                self._unheard += 1
            except KubernetesError as error:
                self._unheard = 0
                _log.info("heartbeat not renewed", error=str(error))
            await asyncio.sleep(self.seconds)
            if self._unheard >= 3:
                _log.error("the watch is dead: heartbeats are renewed and not shown; ending")
                os._exit(1)
