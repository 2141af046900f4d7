"""Revocation of grants: their deletion, tried until it has happened where a token was stolen.

Before that is noted on the grant by whom it ends and why, for the audit. A finalizer keeps the
deleted grant, which gives no access, until the operator has archived its rows.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import structlog

from gateway_core.accounts.changes import GATEWAY, note_ending
from gateway_core.api.oauth import GRANT_PREFIX, GatewayGrant
from gateway_core.concurrency import back_off
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    KubernetesError,
    ObjectNotFound,
    RequestRejected,
    WriteConflict,
)
from gateway_core.kube.kinds import Kind
from gateway_core.kube.repository import writing
from gateway_core.kube.retries import retry_write

GRANTS = Kind(GatewayGrant.plural, GRANT_PREFIX, "Grant")
REVOKED = "access revoked"
ENDED = "access ended"
MOST_ENDING = 1000
"""Grants that one process tries to delete at a time, because of a reuse."""
LONGEST_PAUSE_SECONDS = 2.0
GIVE_UP_AFTER = 1800
"""Attempts, an hour of them."""

_log = structlog.get_logger(__name__)


class Revocations:
    """Deletes grants. `sleep` is asyncio's."""

    def __init__(
        self, kube: KubernetesClient, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._kube = kube
        self._sleep = sleep
        self._ending: dict[str, asyncio.Task[None]] = {}

    def is_ending(self, name: str) -> bool:
        """Return whether the grant must end, but is not deleted yet."""
        return name in self._ending

    async def delete(self, name: str, by: str, text: str = REVOKED) -> None:
        """Delete a grant, if it is there. Unavailable, OutcomeUnknown."""
        async with writing(GRANTS, name):
            await self._delete(name, by, text)

    async def end(self, name: str, reason: str) -> None:
        """Delete a grant because of a `reason`, now or as soon as possible."""
        text = f"{ENDED}: {reason}"
        try:
            await self._delete(name, GATEWAY, text)
        except KubernetesError as error:
            _log.warning("grant is not revoked yet", grant=name, error=str(error))
            if name not in self._ending and len(self._ending) < MOST_ENDING:
                self._ending[name] = asyncio.create_task(self._keep_deleting(name, text))

    async def _keep_deleting(self, name: str, text: str) -> None:
        try:
            for failures in count(1):
                await self._sleep(back_off(failures, longest=LONGEST_PAUSE_SECONDS))
                try:
                    await self._delete(name, GATEWAY, text)
                except KubernetesError as error:
                    if failures >= GIVE_UP_AFTER:
                        _log.error("grant was not revoked", grant=name, error=str(error))
                        return
                else:
                    _log.info("grant revoked", grant=name, failures=failures)
                    return
        finally:
            del self._ending[name]

    async def _delete(self, name: str, by: str, text: str) -> None:
        ending = {"metadata": {"annotations": note_ending(by, text)}}
        try:
            await self._kube.update(
                GRANTS.plural,
                lambda: self._kube.get(GRANTS.plural, name),
                lambda obj: None if "deletionTimestamp" in obj["metadata"] else ending,
            )
        except ObjectNotFound:
            return
        except (WriteConflict, RequestRejected) as error:
            # the end of the access counts for more than the name of who ended it
            _log.warning("end of a grant is not noted", grant=name, error=str(error))
        await retry_write(lambda: self._kube.delete(GRANTS.plural, name))
