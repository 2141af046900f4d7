"""What restricts each key now: from the watch-fed tables, or read while their watch is silent.

A guardrail that is assigned to a key cannot be found by a name that is not known yet. So while the
watch of guardrails is silent, those of the caller's account are listed, once a second at most, all
callers of an account waiting together. When that fails, what is known goes on for five minutes, as
it does for keys.
"""

import asyncio
import time
from collections.abc import Callable

from gateway_core.accounts.authentication import MOST_SILENCE_SECONDS
from gateway_core.accounts.guardrails import (
    Guardrail,
    Policies,
    Policy,
    build_policy,
    read_guardrail,
    select_guardrails,
)
from gateway_core.accounts.records import KeyRecord
from gateway_core.api.errors import Unavailable
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.concurrency import WaitLimit
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import list_all
from gateway_core.kube.read_through import (
    FAILURE_PAUSE_SECONDS,
    INTERVAL_SECONDS,
    QUIET_SECONDS,
    READ_SECONDS,
)

_FIRST_SWEEP = 1024
Listing = asyncio.Task[tuple[Guardrail, ...] | None]


class PolicyView:
    """Policies of keys."""

    def __init__(
        self,
        keys: Cache[KeyRecord],
        guardrails: Cache[Guardrail],
        kube: KubernetesClient,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = guardrails
        self._policies = Policies(keys, guardrails, lambda guardrail: guardrail)
        self._listings = _Listings(kube, clock)

    async def find(self, key: KeyRecord) -> Policy:
        """The policy of a key that was found just now.

        Raises Unavailable where the guardrails are not known well enough to tell.
        """
        if not self._table.synced:
            raise Unavailable("The gateway is starting.", retry_after=1)
        if self._table.staleness > QUIET_SECONDS:
            listed = await self._listings.list_account(key.account)
            if listed is not None:
                chosen = select_guardrails(listed, account=key.account, key_name=key.name)
                return build_policy(key.name, key.rules, chosen)
            if self._table.staleness > MOST_SILENCE_SECONDS:
                raise Unavailable("Guardrails cannot be checked now.")
        return self._policies.find(key.name, key.account, key.rules)


class _Listings:
    """Lists of single accounts' guardrails, shared by all requests within a second."""

    def __init__(self, kube: KubernetesClient, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._clock = clock
        self._begun: dict[str, tuple[float, Listing]] = {}
        self._sweep_at = _FIRST_SWEEP
        self._failed_at = float("-inf")

    async def list_account(self, account: str) -> tuple[Guardrail, ...] | None:
        """The guardrails of the account as of the last second; None if they cannot be read."""
        now = self._clock()
        began, task = self._begun.get(account, (float("-inf"), None))
        if task is None or now - began >= INTERVAL_SECONDS:
            if now - self._failed_at < FAILURE_PAUSE_SECONDS:
                return None
            self._sweep(now)
            task = asyncio.create_task(self._list(account))
            self._begun[account] = (now, task)
        # shielded: a caller that goes away must not take the answer from the others
        return await asyncio.shield(task)

    async def _list(self, account: str) -> tuple[Guardrail, ...] | None:
        selector = f"spec.accountName={account}"
        try:
            async with WaitLimit(READ_SECONDS):
                found, _ = await list_all(
                    self._kube, GatewayGuardrail.plural, field_selector=selector
                )
                return tuple(map(read_guardrail, found))
        except (KubernetesError, TimeoutError):
            self._failed_at = self._clock()
            return None

    def _sweep(self, now: float) -> None:
        if len(self._begun) >= self._sweep_at:
            self._begun = {
                name: entry
                for name, entry in self._begun.items()
                if now - entry[0] < INTERVAL_SECONDS or not entry[1].done()
            }
            self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._begun))
