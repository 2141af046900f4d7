"""`Ready` of accounts, keys, models and providers: usable or not, and what mends it.

Fed by the same tables that the other parts decide by, so the condition says what they do. A change
of one object is felt by others (a key by its account, a model by its provider), so every object is
looked at again when any has changed, and twice a minute for what time and Secrets change.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from gateway_core.contract.account import GatewayAccount
from gateway_core.contract.conditions import ConditionType, Reason, update_conditions
from gateway_core.contract.key import GatewayKey
from gateway_core.contract.model import GatewayModel
from gateway_core.contract.provider import GatewayProvider
from gateway_core.contract.resource import Resource
from gateway_core.domain.catalog import Problem, build_catalog
from gateway_core.domain.lifecycle import format_time, parse_time
from gateway_core.ports.caches import Table
from gateway_core.ports.records import Missing, Outdated, Records
from gateway_operator.providers import Providers

RECHECK_SECONDS = 30.0
SETTLE_SECONDS = 0.05
MOST_MESSAGE = 1000

_log = structlog.get_logger(__name__)


class StandingController:
    """Keeps `Ready` true to the tables. Owned by shard 0's replica."""

    def __init__(
        self,
        records: Records,
        providers: Providers,
        *,
        account_table: Table[GatewayAccount],
        key_table: Table[GatewayKey],
        model_table: Table[GatewayModel],
        provider_table: Table[GatewayProvider],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._records = records
        self._providers = providers
        self._accounts = account_table
        self._keys = key_table
        self._models = model_table
        self._provider_table = provider_table
        self._now = now
        self._changed = asyncio.Event()
        for table in (account_table, key_table, model_table, provider_table):
            table.subscribe(lambda _name: self._changed.set())

    async def run(self) -> None:
        """Checks whenever something has changed, until cancelled."""
        while True:
            self._changed.clear()
            await self.check_all()
            try:
                await asyncio.wait_for(self._changed.wait(), RECHECK_SECONDS)
                await asyncio.sleep(SETTLE_SECONDS)
            except TimeoutError:
                continue

    async def check_all(self) -> None:
        """Compares every object's condition with what it should say; writes where they differ."""
        for account in [entry for _, entry in self._accounts.items()]:
            await self._try(account, _now(self._check_account(account)))
        for key in [entry for _, entry in self._keys.items()]:
            await self._try(key, _now(self._check_key(key)))
        for provider in [entry for _, entry in self._provider_table.items()]:
            await self._try(provider, self._providers.check(provider.metadata.name))
        models = [entry for _, entry in self._models.items()]
        _, problems = build_catalog(models)
        for model in models:
            known = problems.get(model.metadata.name)
            await self._try(model, _now(known) if known else self._check_routes(model))

    async def _try(self, obj: Resource, check: Awaitable[Problem | None]) -> None:
        """Shows what `check` finds; one object that cannot be checked or written stops no other."""
        try:
            await self._show(obj, await check)
        except Exception as error:  # the boundary: any object may be odd in its own way
            _log.warning(
                "condition not written",
                kind=obj.kind_name,
                object=obj.metadata.name,
                error=f"{type(error).__name__}: {error}",
            )

    def _check_account(self, account: GatewayAccount) -> Problem | None:
        if account.spec.suspended:
            return Problem(Reason.SUSPENDED, "the account is suspended by spec.suspended")
        return None

    def _check_key(self, key: GatewayKey) -> Problem | None:
        spec = key.spec
        if spec.revoked:
            return Problem(Reason.REVOKED, "the key is revoked")
        if spec.disabled:
            return Problem(Reason.DISABLED, "the key is disabled by spec.disabled")
        if spec.expiration_time and parse_time(spec.expiration_time) <= self._now():
            return Problem(Reason.EXPIRED, "spec.expirationTime is over")
        account = self._accounts.get(spec.account_name)
        if account is None:
            text = f"no GatewayAccount is called {spec.account_name}"
            return Problem(Reason.ACCOUNT_NOT_FOUND, text)
        return self._check_account(account)

    async def _check_routes(self, model: GatewayModel) -> Problem | None:
        """A model is ready if one of its routes is; the first route's problem is shown if not."""
        first: Problem | None = None
        for route in model.spec.routes:
            problem = await self._providers.check(route.provider_name)
            if problem is None:
                return None
            if problem.reason is not Reason.PROVIDER_NOT_FOUND:
                text = f"provider {route.provider_name} is not ready: {problem.message}"
                problem = Problem(Reason.PROVIDER_NOT_READY, text)
            first = first or problem
        return first

    async def _show(self, obj: Resource, problem: Problem | None) -> None:
        status = "False" if problem else "True"
        reason = problem.reason if problem else Reason.AVAILABLE
        message = problem.message[:MOST_MESSAGE] if problem else "in use"
        current = getattr(obj, "status").conditions or []  # noqa: B009 - each kind declares it
        ready = next((c for c in current if c.type == ConditionType.READY), None)
        shown = ready and (ready.status, ready.reason, ready.message, ready.observed_generation)
        if shown == (status, reason, message, obj.metadata.generation):
            return
        conditions = update_conditions(
            [c.model_dump(by_alias=True, exclude_none=True) for c in current],
            [(ConditionType.READY, status, reason, message)],
            generation=obj.metadata.generation,
            now=format_time(self._now()),
        )
        change: dict[str, Any] = {
            "observedGeneration": obj.metadata.generation,
            "conditions": conditions,
        }
        meta = {"name": obj.metadata.name, "resourceVersion": obj.metadata.resource_version}
        try:
            await self._records.patch_status(type(obj).plural, {"metadata": meta}, change)
        except (Outdated, Missing):
            self._changed.set()


async def _now(problem: Problem | None) -> Problem | None:
    """What is known already, where a check may have to wait."""
    return problem
