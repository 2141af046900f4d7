"""Keeps balances, and the last use of keys, in the status of their objects.

Run by the owner of shard 0. A watch of the metadata of usage objects shows which accounts were
charged: these are updated together, within seconds, in at most a fifth of the time. An account is
also updated soon after its spec has changed (it was funded), or that of one of its keys or
guardrails, and after a window has reset. A status is written only where it differs. What failed is
retried soon. Decisions about money are made by the counters, never by this status.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from gateway_core.api.account import GatewayAccount
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import ACCOUNT_LABEL
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import subject_of_guardrail, subject_of_key
from gateway_core.api.resource import Object, Resource
from gateway_core.api.times import format_time, parse_time
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.spending import SpentSum, render_balance, render_spending
from gateway_core.billing.usage import sum_usage
from gateway_core.billing.usage_store import list_usage
from gateway_core.concurrency import Supervisor
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    KubernetesError,
    ObjectNotFound,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.kube.informer import Cache, Informer

_log = structlog.get_logger(__name__)


LOOK_SECONDS = 60.0
SOON_SECONDS = 1.0
CHARGES_SECONDS = 3.0
"""Between two updates for changes of the usage, or four times as long as the last one took."""
AGAIN_SECONDS = 3.0
"""Before the retry of what failed: another process has written, or the API server is away."""
_AT_ONCE = 4


UsageVersion = tuple[str, str]
"""Account and version of a usage object."""
Versions = tuple[tuple[str, str], ...]
"""Names and versions of an account's usage objects."""


def read_usage_version(obj: Mapping[str, Any]) -> UsageVersion | None:
    """Return the account and version of a usage object, from its metadata.

    Return None without an account.
    """
    account = (obj["metadata"].get("labels") or {}).get(ACCOUNT_LABEL)
    return (account, obj["metadata"]["resourceVersion"]) if account else None


def follow_usage(kube: KubernetesClient) -> Informer[UsageVersion]:
    """Return the watch of all usage objects, of which it has metadata alone."""
    return Informer(kube, GatewayUsage.plural, read_usage_version, metadata_only=True)


class Balances:
    """Updates balances until cancelled."""

    def __init__(
        self,
        kube: KubernetesClient,
        usage: Informer[UsageVersion],
        accounts: Cache[GatewayAccount],
        keys: Cache[GatewayKey],
        guardrails: Cache[GatewayGuardrail],
        now: Callable[[], datetime],
        note: Callable[[], None] = lambda: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`note` is called at the start, and after each full pass without a failure."""
        self._supervisor = supervisor or Supervisor()
        self._kube = kube
        self._usage = usage
        self._accounts = accounts
        self._keys = keys
        self._guardrails = guardrails
        self._now = now
        self._seen: dict[str, Versions] = {}
        self._due: dict[str, datetime] = {}
        self._generations: dict[tuple[str, str], int] = {}
        self._changed: set[str] = set()
        self._charged: set[str] = set()
        self._wake = asyncio.Event()
        usage.subscribe(self._observe_usage)
        for table, kind in self._tables():
            table.subscribe(partial(self._observe, table, kind))
        self._failures = 0
        self._note = note
        note()

    async def run(self) -> None:
        """Never returns."""
        await self._usage.wait_synced()
        loop = asyncio.get_running_loop()
        next_look = next_charges = loop.time()
        while True:
            begun = loop.time()
            with self._supervisor.guard("balances", KubernetesError):
                if begun >= next_look:
                    next_look = begun + LOOK_SECONDS
                    await self.look()
                elif begun >= next_charges and self._charged:
                    charged, self._charged = self._charged, set()
                    await self._update(charged | self._take_changed())
                    pause = max(CHARGES_SECONDS, 4 * (loop.time() - begun))
                    next_charges = loop.time() + min(LOOK_SECONDS, pause)
                else:
                    await self._update(self._take_changed())
            times = [next_look]
            times += [loop.time() + AGAIN_SECONDS] if self._changed else []
            times += [next_charges] if self._charged else []
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(times)):
                    await self._wake.wait()
                    await asyncio.sleep(SOON_SECONDS)
            self._wake.clear()

    async def look(self) -> None:
        """Update all accounts whose usage has changed, or whose window has reset."""
        now, versions = self._now(), self._group_versions()
        self._seen = {name: seen for name, seen in self._seen.items() if name in versions}
        due = {
            name
            for name, _ in self._accounts.items()
            if self._seen.get(name) != versions.get(name, ())
            or (name in self._due and self._due[name] <= now)
        }
        failures = self._failures
        updated = await self._update(due | self._take_changed(), versions)
        self._seen.update({name: versions.get(name, ()) for name in updated})
        if self._failures == failures:
            self._note()

    def _group_versions(self) -> dict[str, Versions]:
        found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for name, (account, version) in self._usage.items():
            found[account].append((name, version))
        return {account: tuple(sorted(parts)) for account, parts in found.items()}

    async def _update(
        self, accounts: Iterable[str], versions: Mapping[str, Versions] | None = None
    ) -> list[str]:
        """Update accounts; those that are up to date now. The others are due again."""
        slots = asyncio.Semaphore(_AT_ONCE)
        keys, guardrails = self._group(self._keys), self._group(self._guardrails)

        async def update(name: str) -> str | None:
            async with slots:
                account = self._accounts.get(name)
                if account is None:
                    return None
                members = [*keys.get(name, ()), *guardrails.get(name, ())]
                known = versions is None or name in versions
                with self._supervisor.guard("balances", KubernetesError, account=name) as attempt:
                    usage = await list_usage(self._kube, name) if known else []
                    if await self._show_account(account, members, usage):
                        return name
                self._failures += attempt.failed
                # after an unexpected failure it is retried with the next full pass
                if attempt.error is None or isinstance(attempt.error, KubernetesError):
                    self._changed.add(name)
                self._seen.pop(name, None)
                return None

        wanted = set(accounts)
        try:
            shown = await asyncio.gather(*map(update, wanted))
        except BaseException:
            self._changed |= wanted
            raise
        return [name for name in shown if name is not None]

    async def _show_account(
        self, account: GatewayAccount, members: list[Any], usage: list[Object]
    ) -> bool:
        """Write where the status of the account or of a key or guardrail differs."""
        now, name = self._now(), account.metadata.name
        # members without an entry of their own show the shared sum: no less was spent
        balance = sum_usage(usage, map(_name_subject, members))
        good = await self._show(account, render_balance(account.spec.funds, balance.charged))
        resets: list[datetime] = []
        for member in members:
            spent = balance.spent.get(_name_subject(member)) or SpentSum()
            fields = render_spending(member.spec.limit, spent, now)
            if fields["resetTime"]:
                resets.append(parse_time(fields["resetTime"]))
            is_shown = member.status.used_micros is not None or member.spec.limit is not None
            if spent.total or spent.last or is_shown:
                good &= await self._show(member, fields)
        self._due.pop(name, None)
        if resets:
            self._due[name] = min(resets)
        return good

    async def _show(self, obj: Any, fields: dict[str, Any]) -> bool:
        """Return whether the object's status has `fields`, after a write if need be."""
        shown = obj.status.model_dump(by_alias=True)
        if all(shown.get(name) == value for name, value in fields.items()):
            return True
        meta = {"name": obj.metadata.name, "resourceVersion": obj.metadata.resource_version}
        try:
            await self._kube.patch_status(type(obj).plural, {"metadata": meta}, fields)
        except ObjectNotFound:
            return True
        except WriteConflict:
            # it has just changed, which the table does not show yet
            return False
        return True

    def _group(self, table: Cache[Any]) -> dict[str, list[Any]]:
        groups: defaultdict[str, list[Any]] = defaultdict(list)
        for obj in (entry for _, entry in table.items()):
            groups[obj.spec.account_name].append(obj)
        return groups

    def _tables(self) -> list[tuple[Cache[Any], type[Resource]]]:
        return [
            (self._accounts, GatewayAccount),
            (self._keys, GatewayKey),
            (self._guardrails, GatewayGuardrail),
        ]

    def _observe(self, table: Cache[Any], kind: type[Resource], name: str) -> None:
        """Note a change of a spec; changes of a status are ignored."""
        obj = table.get(name)
        if obj is None:
            self._generations.pop((kind.plural, name), None)
            return
        before = self._generations.get((kind.plural, name))
        self._generations[kind.plural, name] = obj.metadata.generation
        if before == obj.metadata.generation:
            return
        self._changed.add(name if kind is GatewayAccount else obj.spec.account_name)
        self._wake.set()

    def _observe_usage(self, name: str) -> None:
        entry = self._usage.get(name)
        if entry is not None:
            if not self._charged:
                self._wake.set()
            self._charged.add(entry[0])

    def _take_changed(self) -> set[str]:
        changed, self._changed = self._changed, set()
        return changed


def _name_subject(obj: Any) -> str:
    name = obj.metadata.name
    return subject_of_key(name) if isinstance(obj, GatewayKey) else subject_of_guardrail(name)


COPY_SECONDS = 900.0


@dataclass(eq=False)
class LastUse:
    """Sweeps over all keys, account by account."""

    kube: KubernetesClient
    counters: Counters
    keys: Cache[GatewayKey]

    async def sweep(self) -> int:
        """Write where the counters know a later use; how many keys.

        Raises CountersUnavailable or RecordUnavailable.
        """
        accounts = {key.spec.account_name for _, key in self.keys.items()}
        written = 0
        for account in accounts:
            for name, at in (await self.counters.read_used(account)).items():
                key = self.keys.get(name)
                if key is not None and key.spec.account_name == account:
                    written += await self._write(key, datetime.fromtimestamp(int(at), UTC))
        return written

    async def _write(self, key: GatewayKey, used: datetime) -> bool:
        shown = key.status.last_used_time
        if shown is not None and parse_time(shown) >= used:
            return False
        meta = {"name": key.metadata.name, "resourceVersion": key.metadata.resource_version}
        try:
            await self.kube.patch_status(
                GatewayKey.plural, {"metadata": meta}, {"lastUsedTime": format_time(used)}
            )
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
            # it has just changed: the next sweep writes it
            return False
        return True
