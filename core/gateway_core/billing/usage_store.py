"""GatewayUsage objects: each ended run is added once; old days move to the object store."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import orjson

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.ids import ACCOUNT_LABEL, CHARGED, FOLDED_LABEL, is_batch
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.task import SETTLED, GatewayTask
from gateway_core.api.usage import MOST_PENDING, GatewayUsage, usage_name
from gateway_core.billing.charges import read_charge
from gateway_core.billing.usage import add_charges, drop_pending, list_pending
from gateway_core.concurrency import map_bounded
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesUnavailable,
    ObjectNotFound,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.kube.lists import list_all
from gateway_core.storage.objects import ObjectStore

CLOSED_FOLDER = "closed/"
"""Folder of the usage of removed accounts: by name and uid, never removed and never read."""
MOST_RUNS = 200
"""Runs in one write."""
_ATTEMPTS = 8
_READS_AT_ONCE = 16


class AggregationDeferred(KubernetesUnavailable):
    """The usage object cannot be written now: its day is being closed, or others write it."""


async def aggregate_runs(
    kube: KubernetesClient,
    account: str,
    day: str,
    runs: Sequence[Object],
    marked: Collection[str],
    now: datetime,
    note_added: Callable[[int], None] = lambda _: None,
) -> set[str]:
    """Add ended runs of one account and day (at most `MOST_RUNS`); the uids that are done.

    A run is done once its charge is in the sums, or it is labelled, or gone. `marked` are uids of
    earlier runs whose label is known to be there. Where the object has no room for all names, some
    of the runs that it names are labelled here; new runs that still find no room are left out.
    `note_added` is called with the number of runs whose charges this call has added. Raises
    AggregationDeferred, also where none is done, and KubernetesUnavailable.
    """
    for _ in range(_ATTEMPTS):
        usage = await open_usage(kube, account, day)
        # read after the usage object: a run without a label now is in it, or in no usage at all
        current = await asyncio.gather(*(_read_after(kube, usage, run) for run in runs))
        unlabelled = [run for run in current if run is not None and not is_aggregated(run)]
        status = drop_pending(usage.get("status") or {}, marked)
        known = list_pending(status)
        new = [run for run in unlabelled if run["metadata"]["uid"] not in known]
        if len(known) + len(new) > MOST_PENDING:
            # reads of up to 400 runs, but only when the names have no room
            room = await _make_room(kube, known, len(known) + len(new) - MOST_PENDING)
            status = drop_pending(status, room)
            new = new[: MOST_PENDING - len(list_pending(status))]
        left = {run["metadata"]["uid"] for run in unlabelled} - set(known)
        left -= {run["metadata"]["uid"] for run in new}
        done = {run["metadata"]["uid"] for run in runs} - left
        if left and not done:
            raise AggregationDeferred(f"{usage_name(account, day)} has no room for names")
        if not new:
            return done
        status = add_charges(status, day, map(read_charge, new), now)
        try:
            # compare-and-set: of several concurrent writers one wins, the others read again
            await kube.patch_status(GatewayUsage.plural, usage, status)
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
            continue
        note_added(len(new))
        return done
    raise AggregationDeferred(f"{usage_name(account, day)} is written by others all the time")


async def open_usage(kube: KubernetesClient, account: str, day: str | None) -> Object:
    """Return the account's usage object of `day`, or of all days before, created if needed.

    Raises AggregationDeferred for a day that is closed.
    """
    name = usage_name(account, day)
    while True:
        try:
            usage = await kube.get(GatewayUsage.plural, name)
        except ObjectNotFound:
            spec = {"accountName": account, **({"day": day} if day else {})}
            head = skeleton(GatewayUsage, name, labels={ACCOUNT_LABEL: account})
            with suppress(AlreadyExists, WriteOutcomeUnknown):
                return await kube.create(GatewayUsage.plural, {**head, "spec": spec})
            continue
        if (usage.get("status") or {}).get("closed"):
            raise AggregationDeferred(f"{name} is closed and about to go")
        return usage


async def find_marked(kube: KubernetesClient, pending: Mapping[str, str]) -> set[str]:
    """Which of the runs (uid -> name) are labelled as aggregated, or gone."""
    runs = await _read_runs(kube, pending)
    return {uid for uid, run in runs.items() if run is None or is_aggregated(run)}


async def _make_room(kube: KubernetesClient, pending: Mapping[str, str], least: int) -> set[str]:
    """Return the uids of runs (uid -> name) that are labelled or gone; some are labelled for this.

    First tasks whose callback is still tried, perhaps for a day. The others are being closed, and
    get their label without a further write: of these, only where nothing else makes room, since the
    process that added them may have gone.
    """
    runs = await _read_runs(kube, pending)
    free = {uid for uid, run in runs.items() if run is None or is_aggregated(run)}
    left = {uid: run for uid, run in runs.items() if run is not None and uid not in free}
    if len(free) < least:
        free |= await _mark(kube, {uid: run for uid, run in left.items() if _awaits_callback(run)})
    return free or await _mark(kube, left)


def _awaits_callback(run: Object) -> bool:
    """Return whether the run is a task whose callback is still tried."""
    is_task = not is_batch(run["metadata"]["name"])
    return is_task and (run.get("status") or {}).get("work") != SETTLED


async def _mark(kube: KubernetesClient, runs: Mapping[str, Object]) -> set[str]:
    """Label runs (by uid) that the usage names, which are not closed by that; their uids."""
    label = {"metadata": {"labels": {FOLDED_LABEL: CHARGED}}}

    async def mark(run: Object) -> bool:
        with suppress(WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
            await kube.patch(_name_kind(run["metadata"]["name"]), run, label)
            return True
        return False

    answers = await map_bounded(_READS_AT_ONCE, mark, runs.values())
    return {uid for uid, answer in zip(runs, answers, strict=True) if answer}


async def _read_runs(
    kube: KubernetesClient, pending: Mapping[str, str]
) -> dict[str, Object | None]:
    """Return the runs (uid -> name) by uid, each read anew; None where it is gone."""

    async def read(run: tuple[str, str]) -> Object | None:
        uid, name = run
        return await _read_run(kube, name, uid)

    runs = await map_bounded(_READS_AT_ONCE, read, pending.items())
    return dict(zip(pending, runs, strict=True))


async def list_usage(kube: KubernetesClient, account: str, at_version: str = "") -> list[Object]:
    """Return all usage objects of the account, as of now or of another list. VersionExpired."""
    selector = f"{ACCOUNT_LABEL}={account}"
    return (
        await list_all(kube, GatewayUsage.plural, label_selector=selector, at_version=at_version)
    )[0]


def is_aggregated(run: Mapping[str, Any]) -> bool:
    """Return whether the run is labelled: its charge is in its account's usage."""
    return FOLDED_LABEL in (run["metadata"].get("labels") or {})


def select_unaggregated(account: str | None = None) -> str:
    """Return a label selector of runs that are not aggregated, of one account or of all."""
    return ",".join([*([f"{ACCOUNT_LABEL}={account}"] if account else []), f"!{FOLDED_LABEL}"])


async def _read_after(kube: KubernetesClient, usage: Object, run: Object) -> Object | None:
    """Return the run as of the version of `usage` or later; None if it is gone.

    All kinds of the gateway share the revisions of one etcd, so a run with a newer version than the
    usage object's needs no read.
    """
    if int(run["metadata"]["resourceVersion"]) > int(usage["metadata"]["resourceVersion"]):
        return run
    return await _read_run(kube, run["metadata"]["name"], run["metadata"]["uid"])


def _name_kind(name: str) -> str:
    return GatewayBatch.plural if is_batch(name) else GatewayTask.plural


async def _read_run(kube: KubernetesClient, name: str, uid: str) -> Object | None:
    try:
        run = await kube.get(_name_kind(name), name)
    except ObjectNotFound:
        return None
    return run if run["metadata"]["uid"] == uid else None


async def archive_day(store: ObjectStore, day: Object) -> None:
    """Put a closed day into the store; always the same bytes under the same key.

    StoreUnavailable.
    """
    spec = day["spec"]
    key = f"{_folder(spec['accountName'])}{spec['day']}.{day['metadata']['uid']}.json"
    await store.put(key, _dump(day))


def _dump(usage: Object) -> bytes:
    meta = usage["metadata"]
    kept = {"name": meta["name"], "uid": meta["uid"]}
    # sorted keys and no times: repeating the write stores the same bytes
    document = {"metadata": kept, "spec": usage["spec"], "status": usage.get("status") or {}}
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


async def close_usage(store: ObjectStore, usage: Object, account_uid: str) -> None:
    """Copy a usage object to the books of its account, which is removed. StoreUnavailable."""
    meta = usage["metadata"]
    folder = _closed_folder(usage["spec"]["accountName"], account_uid)
    await store.put(f"{folder}{meta['name']}.{meta['uid']}.json", _dump(usage))


async def close_archive(store: ObjectStore, account: str, account_uid: str) -> None:
    """Move the archived days of an account that is removed to its books. StoreUnavailable."""
    closed = _closed_folder(account, account_uid)
    async for entry in store.list_entries(_folder(account)):
        document = await store.get(entry.key)
        await store.put(closed + entry.key.removeprefix(_folder(account)), document)
        await store.delete(entry.key)


def _closed_folder(account: str, uid: str) -> str:
    return f"{CLOSED_FOLDER}{account}/{uid}/"


async def list_archived_days(
    store: ObjectStore, account: str, first: str, last: str
) -> dict[str, str]:
    """Return keys of the account's archived days from `first` to `last`, by uid. StoreUnavailable.

    What is under a key never changes.
    """
    folder, keys = _folder(account), dict[str, str]()
    async for entry in store.list_entries(folder, start_after=folder + first):
        day, _, rest = entry.key.removeprefix(folder).partition(".")
        if day > last:
            break
        keys[rest.removesuffix(".json")] = entry.key
    return keys


def _folder(account: str) -> str:
    return f"usage/{account}/"
