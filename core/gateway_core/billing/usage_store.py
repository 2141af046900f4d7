"""Usage objects: each ended run is added exactly once; old days move to the object store."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import orjson

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.ids import ACCOUNT_LABEL, FOLDED_LABEL, TASK_FINALIZER, is_batch
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.task import SETTLED, GatewayTask
from gateway_core.api.times import format_label_time
from gateway_core.api.usage import MOST_PENDING, GatewayUsage, usage_name
from gateway_core.billing.usage import add_charges, drop_pending, list_pending, read_charge
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesUnavailable,
    ObjectNotFound,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.storage.objects import ObjectStore

MOST_FOLDED = 200
"""Runs in one write, at most."""
_ATTEMPTS = 8
_READS_AT_ONCE = 16


class FoldDeferred(KubernetesUnavailable):
    """Nothing can be added now: the day is being moved away, or others write all the time."""


async def fold_runs(
    kube: KubernetesClient,
    account: str,
    day: str,
    tasks: Sequence[Object],
    marked: Collection[str],
    now: datetime,
) -> set[str]:
    """Adds ended runs of one account and day (at most `MOST_FOLDED`); the uids now done with.

    A run is done with once its charge is in the sums, or it was marked, or is gone. `marked` are
    uids of earlier ones whose label is known to be there. Fewer than all are done where there is
    not room for all names. Where others have left none, what they have not marked is marked for
    them. Raises FoldDeferred, also where none is done; KubernetesUnavailable.
    """
    for _ in range(_ATTEMPTS):
        usage = await open_usage(kube, account, day)
        if (usage.get("status") or {}).get("closed"):
            raise FoldDeferred(f"{usage_name(account, day)} is closed and about to go")
        current = await asyncio.gather(*(_look_after(kube, usage, task) for task in tasks))
        open_tasks = [task for task in current if task is not None and not is_folded(task)]
        status = drop_pending(usage.get("status") or {}, marked)
        known = list_pending(status)
        new = [task for task in open_tasks if task["metadata"]["uid"] not in known]
        if len(known) + len(new) > MOST_PENDING:
            found = await find_marked(kube, known)
            status = drop_pending(status, found or await _mark_left(kube, known, now))
            new = new[: MOST_PENDING - len(list_pending(status))]
        left = {task["metadata"]["uid"] for task in open_tasks} - set(known)
        left -= {task["metadata"]["uid"] for task in new}
        done = {task["metadata"]["uid"] for task in tasks} - left
        if left and not done:
            raise FoldDeferred(f"{usage_name(account, day)} has no room for names")
        if not new:
            return done
        status = add_charges(status, day, map(read_charge, new), now)
        try:
            await kube.patch_status(GatewayUsage.plural, usage, status)
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
            continue
        return done
    raise FoldDeferred(f"{usage_name(account, day)} is written by others all the time")


async def open_usage(kube: KubernetesClient, account: str, day: str | None) -> Object:
    """The account's usage object of `day`, or of all days before; made if need be."""
    name = usage_name(account, day)
    while True:
        try:
            return await kube.get(GatewayUsage.plural, name)
        except ObjectNotFound:
            pass
        spec = {"accountName": account, **({"day": day} if day else {})}
        head = skeleton(GatewayUsage, name, labels={ACCOUNT_LABEL: account})
        try:
            return await kube.create(GatewayUsage.plural, {**head, "spec": spec})
        except (AlreadyExists, WriteOutcomeUnknown):
            continue


async def find_marked(kube: KubernetesClient, pending: Mapping[str, str]) -> set[str]:
    """Which of the runs (uid -> name) are marked as folded, or gone."""
    slots = asyncio.Semaphore(_READS_AT_ONCE)

    async def is_marked(uid: str, name: str) -> bool:
        async with slots:
            task = await _read_run(kube, name, uid)
        return task is None or is_folded(task)

    answers = await asyncio.gather(*(is_marked(uid, name) for uid, name in pending.items()))
    return {uid for uid, answer in zip(pending, answers, strict=True) if answer}


async def _mark_left(kube: KubernetesClient, pending: Mapping[str, str], now: datetime) -> set[str]:
    """Marks runs (uid -> name) for who has folded them and is away; the uids now marked.

    They are settled, and tasks archived, since that comes before the fold: of a task the mark is
    all that is left.
    """
    slots = asyncio.Semaphore(_READS_AT_ONCE)

    async def mark(uid: str, name: str) -> bool:
        async with slots:
            task = await _read_run(kube, name, uid)
            if task is None or is_folded(task):
                return True
            if not is_batch(name) and (task.get("status") or {}).get("work") != SETTLED:
                return False
            with suppress(WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
                await kube.patch(_name_kind(name), task, _make_mark(task, now))
                return True
            return False

    answers = await asyncio.gather(*(mark(uid, name) for uid, name in pending.items()))
    return {uid for uid, answer in zip(pending, answers, strict=True) if answer}


def _make_mark(task: Object, now: datetime) -> dict[str, Any]:
    """The change of a run whose charge is in its account's usage.

    It is the last part of closing a task; a batch's results are still to be removed.
    """
    meta = task["metadata"]
    kept = [name for name in meta.get("finalizers") or () if name != TASK_FINALIZER]
    return {"metadata": {"finalizers": kept, "labels": {FOLDED_LABEL: format_label_time(now)}}}


async def list_usage(kube: KubernetesClient, account: str, at_version: str = "") -> list[Object]:
    """All usage objects of the account, as of now or of another list. VersionExpired."""
    found: list[Object] = []
    token = None
    while True:
        page = await kube.list_page(
            GatewayUsage.plural,
            token=token,
            label_selector=f"{ACCOUNT_LABEL}={account}",
            at_version=at_version,
        )
        found += page.items
        token = page.next_token
        if token is None:
            return found


def is_folded(task: Mapping[str, Any]) -> bool:
    """Whether the task carries the mark that its charge is in its account's usage."""
    return FOLDED_LABEL in (task["metadata"].get("labels") or {})


def select_unfolded(account: str | None = None) -> str:
    """A label selector of tasks that are not folded, of one account or of all."""
    parts: Iterable[str] = (f"!{FOLDED_LABEL}",)
    return ",".join([*([f"{ACCOUNT_LABEL}={account}"] if account else []), *parts])


async def _look_after(kube: KubernetesClient, usage: Object, task: Object) -> Object | None:
    """The task as it is at or after the version of `usage`; None if it is gone.

    A version of the task that is newer than the usage object's is such a look already: all kinds of
    the gateway share one sequence of versions, that of the API server's etcd.
    """
    if int(task["metadata"]["resourceVersion"]) > int(usage["metadata"]["resourceVersion"]):
        return task
    return await _read_run(kube, task["metadata"]["name"], task["metadata"]["uid"])


def _name_kind(name: str) -> str:
    return GatewayBatch.plural if is_batch(name) else GatewayTask.plural


async def _read_run(kube: KubernetesClient, name: str, uid: str) -> Object | None:
    try:
        task = await kube.get(_name_kind(name), name)
    except ObjectNotFound:
        return None
    return task if task["metadata"]["uid"] == uid else None


_DAYS_AT_ONCE = 8


async def keep_day(store: ObjectStore, day: Object) -> None:
    """Puts a closed day into the store; the same bytes under the same key, always.

    StoreUnavailable.
    """
    meta, spec = day["metadata"], day["spec"]
    key = f"{_folder(spec['accountName'])}{spec['day']}.{meta['uid']}.json"
    kept = {"name": meta["name"], "uid": meta["uid"]}
    document = {"metadata": kept, "spec": spec, "status": day["status"]}
    await store.put(key, orjson.dumps(document, option=orjson.OPT_SORT_KEYS))


async def read_past_days(
    store: ObjectStore, account: str, first: str, last: str
) -> list[dict[str, Any]]:
    """The account's days that are kept, from `first` to `last` (`2026-11-21`). StoreUnavailable."""
    folder, keys = _folder(account), list[str]()
    async for entry in store.list_entries(folder, start_after=folder + first):
        if entry.key.removeprefix(folder)[: len(last)] > last:
            break
        keys.append(entry.key)
    slots = asyncio.Semaphore(_DAYS_AT_ONCE)

    async def read(key: str) -> dict[str, Any]:
        async with slots:
            day: dict[str, Any] = orjson.loads(await store.get(key))
            return day

    return await asyncio.gather(*map(read, keys))


def _folder(account: str) -> str:
    return f"usage/{account}/"
