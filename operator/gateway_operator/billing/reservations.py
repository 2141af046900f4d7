"""Reservations: money held for a run before it may cost anything, and settled once it has ended.

A run is a task or a batch; its hold is keyed by its name.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog

from gateway_core.api.account import AccountDefaults, GatewayAccount
from gateway_core.api.limits import list_subjects
from gateway_core.api.resource import Object
from gateway_core.api.times import parse_time
from gateway_core.billing.counters import AdmissionAnswer, AdmissionCall, Budget, Hold
from gateway_core.billing.ledger import Rebuilder, read_entry
from gateway_core.billing.redis_counters import Counters
from gateway_core.kube.errors import KubernetesError
from gateway_core.redis.link import CountersStale, CountersUnavailable

REBUILD_LOOKS = 6
REBUILD_PAUSE = 0.5
"""Seconds between two checks of another process's rebuild, and before failed counters are called
again.

They are called twice, not until they are back: the end of a run must not wait for them.
"""

_log = structlog.get_logger(__name__)


class Payer(Protocol):
    """The fields of a run's request that name the payer."""

    account_name: str
    key_name: str | None
    guardrail_names: list[str] | None


def make_hold(name: str, request: Payer, micros: int) -> Hold:
    """Return the hold of `micros` for the run `name`, under all that its request counts under."""
    named = {"keyName": request.key_name, "guardrailNames": request.guardrail_names}
    return Hold(name, micros, list_subjects(named))


@dataclass(eq=False)
class Reservations:
    """Holds of runs in the counters, which are rebuilt where they have lost an account's money."""

    counters: Counters
    rebuilder: Rebuilder
    defaults: AccountDefaults
    now: Callable[[], datetime]

    async def admit(
        self,
        account: GatewayAccount,
        name: str,
        request: Payer,
        micros: int,
        budgets: Sequence[Budget],
    ) -> AdmissionAnswer:
        """Hold money for a run that no API process has admitted. CountersUnavailable.

        A hold of an earlier attempt, at another price, is enough until this amount is recorded:
        then it becomes what is recorded. Where the answer is `stale` the account was rebuilt.
        """
        funds = account.spec.funds
        paid = funds.paid_micros + funds.bonus_micros if funds else 0
        answer = await self.counters.admit(
            AdmissionCall(
                account=account.metadata.name,
                requests_per_minute=self.defaults.choose_rate(account.spec.requests_per_minute),
                hold=make_hold(name, request, micros),
                funds=None if account.spec.unlimited else paid,
                rate="skip",
                budgets=tuple(budgets),
            )
        )
        if answer.stale:
            await self.rebuild(account.metadata.name)
        return answer

    async def rebuild(self, account: str) -> bool:
        """Rebuild the account's money; False where another process is doing that."""
        return await self.rebuilder.rebuild(account)

    async def release(self, account: str, name: str) -> None:
        """Settle a hold at no cost; left to the resync where the counters are away."""
        with suppress(CountersUnavailable, CountersStale):
            await self.counters.settle(account, name, 0, self.now())

    async def settle(self, run: Object) -> bool:
        """Settle the hold of a run that has ended, if there is one; whether that could be done.

        It is charged once, however often and by whomever this is called. Where the counters are
        stale, the account is rebuilt first, or another process's rebuild is awaited: that one may
        have read the run while it was open, and then gives it a hold that only the resync would
        end. Where this takes long or fails, or the counters fail twice, the hold is left to the
        resync, or to the rebuild that counts this run from its object.
        """
        entry, name = read_entry(run), run["metadata"]["name"]
        account = run["spec"]["request"]["accountName"]
        ended = (run.get("status") or {}).get("completionTime")
        at = parse_time(ended) if ended else self.now()
        problem: Exception | None = None
        for _ in range(REBUILD_LOOKS):
            try:
                await self.counters.settle(account, name, entry.charged, at)
            except CountersUnavailable as error:
                if isinstance(problem, CountersUnavailable):
                    break
                problem = error
                await asyncio.sleep(REBUILD_PAUSE)
                continue
            except CountersStale as error:
                problem = error
            else:
                return True
            try:
                if not await self.rebuild(account):
                    await asyncio.sleep(REBUILD_PAUSE)
            except (CountersUnavailable, KubernetesError) as error:
                problem = error
                break
        _log.info("hold not settled", object=name, error=type(problem).__name__)
        return False
