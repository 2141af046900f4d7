"""Rebuild of an account's money in the counters from objects and journal."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import list_subjects, subject_of_guardrail, subject_of_key
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.billing.charges import ENDED_PHASES, Charge, read_charge
from gateway_core.billing.counters import Ledger
from gateway_core.billing.journal import JournalDamaged, JournalObject
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.spending import SpentSum, shares_entries
from gateway_core.billing.usage import Balance, sum_usage
from gateway_core.billing.usage_store import list_usage, select_unaggregated
from gateway_core.billing.windows import number_day
from gateway_core.concurrency import SingleFlight
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesUnavailable, VersionExpired
from gateway_core.kube.lists import list_all
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.objects import StoreUnavailable


@dataclass(frozen=True, slots=True)
class Entry:
    """Money of one run: micro-dollars held, or charged on a UTC day."""

    held: int = 0
    charged: int = 0
    day: str | None = None


def read_entry(obj: dict[str, Any]) -> Entry:
    """Return the entry of one task or batch.

    All of it is zero where the run neither holds nor has cost anything.
    """
    status = obj.get("status") or {}
    if status.get("phase") in ENDED_PHASES:
        ended = status.get("completionTime") or ""
        return Entry(charged=status.get("chargedMicros") or 0, day=ended[:10] or None)
    reserved = status.get("reservedMicros")
    if reserved is None:
        reserved = obj["spec"]["request"].get("reservedMicros")
    return Entry(held=reserved or 0)


MOST_AT_ONCE = 4
_ATTEMPTS = 6
_DAYS_OF_JOURNALS = 2
_OF_BATCHES = ("modelId", "service", "counts")


class RebuildLapsed(KubernetesUnavailable):
    """Nothing was rebuilt: reading took too long, or the store has lost its content again."""


class Rebuilder:
    """Rebuilds accounts' money, a few accounts at a time; for one process and event loop.

    A loss of the counters makes all accounts stale at once, and each rebuild lists the account's
    open tasks and days: unbounded they would starve other users of the Kubernetes API, and each
    other of the time that a rebuild has.
    """

    def __init__(self, kube: KubernetesClient, journal: JournalStore, counters: Counters) -> None:
        self._kube = kube
        self._journal = journal
        self._counters = counters
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._running = SingleFlight[bool]()

    async def rebuild(self, account: str) -> bool:
        """Rebuild as `rebuild_ledger` does; concurrent calls for an account share one rebuild.

        It continues if its caller is cancelled.
        """
        return await self._running.run(account, partial(self._run, account))

    async def _run(self, account: str) -> bool:
        # read before the wait: without one nothing can have changed
        waited = self._slots.locked()
        async with self._slots:
            # another replica may have rebuilt it during the wait
            if waited and await _is_there(self._counters, account):
                return True
            return await rebuild_ledger(self._kube, self._journal, self._counters, account)


async def rebuild_ledger(
    kube: KubernetesClient, journal: JournalStore, counters: Counters, account: str
) -> bool:
    """Read the account's ledger and put it in place; False where another replica does so.

    It misses a task whose amount is being written now (its create, or its intent where it was made
    with kubectl); the operator takes that hold again before it submits. Raises RebuildLapsed, and
    what `kube` and `counters` raise.
    """
    token = await counters.begin_rebuild(account)
    if token is None:
        return False
    try:
        ledger = await read_ledger(kube, journal, account)
    except BaseException:
        # a replica that cannot read the objects must not block one that can
        with suppress(CountersUnavailable):
            await counters.abandon_rebuild(account, token)
        raise
    # a rebuild whose token has expired is fine if another replica has completed one
    if await counters.finish_rebuild(account, token, ledger) or await _is_there(counters, account):
        return True
    raise RebuildLapsed(f"the money of {account} was not put in place")


async def _is_there(counters: Counters, account: str) -> bool:
    try:
        await counters.read_spending(account, "")
    except CountersStale:
        return False
    return True


async def read_ledger(kube: KubernetesClient, journal: JournalStore, account: str) -> Ledger:
    """Return the account's money: aggregated charges, later charges, and holds.

    Runs and usage are listed at one version, so that concurrent aggregation counts once: a run
    without its label is left out where the usage of that version names it. The journal is read
    before them, hence again where the usage has taken in more of it than was read.
    KubernetesUnavailable, also where the journal cannot be read.
    """
    known = _find_marks(sum_usage(await list_usage(kube, account)))
    for _ in range(_ATTEMPTS):
        try:
            objects = await journal.read_all()
        except (StoreUnavailable, JournalDamaged) as error:
            raise KubernetesUnavailable(f"the usage journal cannot be read: {error}") from error
        for obj in objects:
            # the usage must not be ahead of the journal that was read: its charges would be missing
            known[obj.process] = max(obj.sequence, known.get(obj.process, 0))
        with suppress(VersionExpired):
            ledger = await _read_moment(kube, objects, account)
            if all(n <= known.get(process, 0) for process, n in ledger.journals.items()):
                return ledger
            known = dict(ledger.journals)
    raise KubernetesUnavailable(f"tasks and usage of {account} change too fast to be read")


async def _read_moment(
    kube: KubernetesClient, journal: Sequence[JournalObject], account: str
) -> Ledger:
    runs, version = await _list_runs(kube, GatewayTask.plural, account)
    batches, _ = await _list_runs(kube, GatewayBatch.plural, account, at_version=version)
    runs += batches
    usage = await list_usage(kube, account, at_version=version)
    # a subject without an entry counts under a shared one, so all subjects have to be named then
    names = await _list_subjects(kube, account) if shares_entries(usage) else ()
    balance = sum_usage(usage, names)
    charged, by_day, spent = balance.charged, Counter(balance.by_day), balance.spent
    holds: dict[str, int] = {}
    subjects: dict[str, tuple[str, ...]] = {}
    for task in runs:
        entry, name = read_entry(task), task["metadata"]["name"]
        if entry.held:
            holds[name] = entry.held
            subjects[name] = list_subjects(task["spec"]["request"])
        elif entry.charged and task["metadata"]["uid"] not in balance.aggregated:
            charge = read_charge(task)
            charged += charge.micros
            by_day[charge.day] += charge.micros
            _add_charge(spent, charge)
    journals = _find_marks(balance)
    for obj in journal:
        journals[obj.process] = max(obj.sequence, journals.get(obj.process, 0))
        for record in obj.records:
            if record.account != account:
                continue
            # marks are by day, since each day is a separate object and may lag behind others
            charge = record.to_charge()
            if obj.sequence > balance.journals.get(charge.day, {}).get(obj.process, 0):
                charged += charge.micros
                by_day[charge.day] += charge.micros
                _add_charge(spent, charge)
    return Ledger(
        charged=charged,
        by_day=dict(by_day),
        holds=holds,
        subjects=subjects,
        spent={subject: sums.freeze() for subject, sums in spent.items()},
        journals=journals,
    )


async def _list_runs(
    kube: KubernetesClient, plural: str, account: str, at_version: str = ""
) -> tuple[list[Object], str]:
    """Return the account's runs of a kind that are not aggregated, and the version of the list."""
    return await list_all(
        kube,
        plural,
        label_selector=select_unaggregated(account),
        at_version=at_version,
        shorten=_strip,
    )


def _find_marks(balance: Balance) -> dict[str, int]:
    """Marks of recent journals in the usage; processes of older ones have no calls in flight."""
    marks: dict[str, int] = {}
    for day in sorted(balance.journals)[-_DAYS_OF_JOURNALS:]:
        for process, sequence in balance.journals[day].items():
            marks[process] = max(sequence, marks.get(process, 0))
    return marks


def _add_charge(spent: dict[str, SpentSum], charge: Charge) -> None:
    day = number_day(date.fromisoformat(charge.day))
    for subject in charge.subjects:
        spent.setdefault(subject, SpentSum()).add(charge.micros, day, charge.minute)


async def _list_subjects(kube: KubernetesClient, account: str) -> list[str]:
    """Subjects of all keys and guardrails of the account."""
    found: list[str] = []
    for kind, name_subject in (
        (GatewayKey, subject_of_key),
        (GatewayGuardrail, subject_of_guardrail),
    ):
        objects, _ = await list_all(
            kube,
            kind.plural,
            field_selector=f"spec.accountName={account}",
            metadata_only=True,
        )
        found += [name_subject(obj["metadata"]["name"]) for obj in objects]
    return found


def _strip(task: Object) -> Object:
    """Return the fields of a run that the ledger reads: an account may have thousands of runs."""
    meta, request, status = task["metadata"], task["spec"]["request"], task.get("status") or {}
    about = ("accountName", "keyName", "guardrailNames", "modelId", "service", "action")
    kept = ("phase", "chargedMicros", "completionTime", "reservedMicros", *_OF_BATCHES)
    return {
        "metadata": {name: meta.get(name) for name in ("name", "uid", "creationTimestamp")},
        "spec": {"request": {name: request.get(name) for name in (*about, "reservedMicros")}},
        "status": {field: status[field] for field in kept if field in status},
    }
