"""When what is removed: each kind in a loop of its own, so that a long one holds up no other."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.concurrency import Supervisor
from gateway_core.files.quota_counters import StorageUnavailable
from gateway_core.kube.errors import KubernetesError
from gateway_core.kube.informer import Cache
from gateway_core.redis.link import CountersUnavailable
from gateway_core.storage.objects import StoreUnavailable
from gateway_operator.accounts.lastuse import COPY_SECONDS, LastUse
from gateway_operator.billing.dayclosing import Closing
from gateway_operator.retention.bytes import Expiry, RemovedTrim
from gateway_operator.retention.deletions import Deletions, Rules
from gateway_operator.retention.ended import BATCHES, EndedRemoval
from gateway_operator.retention.revokedkeys import RevokedKeys
from gateway_operator.retention.tasks import Removal
from gateway_operator.tasks.tools import Tools

FIRST_SECONDS = 5.0
"""A start has other things to do first."""

CLOSING_SECONDS = 3600.0
EXPIRY_SECONDS = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """Something to be done every so often; it says how much it did."""

    name: str
    run: Callable[[], Awaitable[int]]
    pause_seconds: float


def plan_sweeps(
    tools: Tools, guardrails: Cache[GatewayGuardrail], rules: Rules, sweep_seconds: float
) -> tuple[Sweep, ...]:
    """What shard 0's owner removes, and how often at most."""
    kube, store, now = tools.kube, tools.store, tools.now
    deletions = Deletions(kube, tools.failpoints)
    removal = Removal(kube, rules, tools.metrics, deletions, now)
    batches = EndedRemoval(
        kube, deletions, BATCHES, now, kept_seconds=rules.batches, most=rules.ended
    )
    revoked = RevokedKeys(kube, store, deletions, tools.keys, guardrails)
    uses = LastUse(kube, tools.counters, tools.keys)
    return (
        Sweep("finished tasks", removal.sweep, sweep_seconds),
        Sweep("days of usage", Closing(kube, store, rules, now).sweep, CLOSING_SECONDS),
        Sweep("ended batches", batches.sweep, sweep_seconds),
        Sweep("last use of keys", uses.sweep, COPY_SECONDS),
        Sweep("revoked keys", revoked.sweep, sweep_seconds),
        Sweep("removed keys and guardrails", RemovedTrim(store).sweep, CLOSING_SECONDS),
        Sweep("bytes of the past", Expiry(store, rules, now).sweep, EXPIRY_SECONDS),
    )


class Schedule:
    """Runs sweeps until cancelled, whatever fails; `note` is told of each that has not, by name."""

    def __init__(
        self, note: Callable[[str], None], *sweeps: Sweep, supervisor: Supervisor | None = None
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._note = note
        self._sweeps = sweeps
        for sweep in sweeps:
            note(sweep.name)

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as group:
            for sweep in self._sweeps:
                group.create_task(self._repeat(sweep), name=f"sweep {sweep.name}")

    async def _repeat(self, sweep: Sweep) -> None:
        await asyncio.sleep(min(FIRST_SECONDS, sweep.pause_seconds))
        while True:
            away = (KubernetesError, StoreUnavailable, StorageUnavailable, CountersUnavailable)
            with self._supervisor.guard(sweep.name, *away):
                await sweep.run()
                self._note(sweep.name)
            spread = random.uniform(0.9, 1.1)  # noqa: S311 - spreads replicas, hides nothing
            await asyncio.sleep(sweep.pause_seconds * spread)
