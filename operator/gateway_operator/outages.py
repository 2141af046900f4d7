"""Outages that work waits for: from when on waits are shown, and in which words."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from gateway_core.api.conditions import Reason
from gateway_core.kube.errors import KubernetesError
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.objects import StoreUnavailable
from gateway_operator.reconciler import Superseded

PATIENCE_SECONDS = 10.0
"""Time for which an outage is not shown: most are shorter."""
LEDGER = "its account's balance cannot be read from Redis now"
STORE = "the object store does not answer"
OUTAGES = (StoreUnavailable, CountersUnavailable, CountersStale)


def describe_outage(error: Exception) -> tuple[Reason, str]:
    """Return the reason of a condition, and its words."""
    if isinstance(error, StoreUnavailable):
        return Reason.WAITING_FOR_STORE, STORE
    return Reason.WAITING_FOR_LEDGER, LEDGER


class Outages:
    """Shows the outages that objects of a controller wait for."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def forget(self, name: str) -> None:
        """Drop what is known of `name`'s waits."""
        self._since.pop(name, None)

    @asynccontextmanager
    async def shown(
        self, name: str, show: Callable[[Reason, str], Awaitable[object]]
    ) -> AsyncIterator[None]:
        """Call `show` where the step of `name` inside fails by an outage that lasts.

        The error is raised in any case, so that the work queue repeats the step.
        """
        try:
            yield
        except OUTAGES as error:
            now = asyncio.get_running_loop().time()
            if now - self._since.setdefault(name, now) >= PATIENCE_SECONDS:
                with suppress(Superseded, KubernetesError):
                    await show(*describe_outage(error))
            raise
        self.forget(name)
