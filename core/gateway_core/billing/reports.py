"""Usage reports: charges summed along the requested dimensions."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from operator import attrgetter
from sys import intern
from typing import Any, Literal, get_args

import orjson

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.errors import Unavailable
from gateway_core.api.resource import Object, Resource
from gateway_core.api.task import GatewayTask
from gateway_core.billing.charges import ENDED_PHASES, Amounts, has_charge, read_charge
from gateway_core.billing.usage import find_aggregated
from gateway_core.billing.usage_store import (
    list_archived_days,
    list_usage,
    read_runs,
    select_unaggregated,
)
from gateway_core.concurrency import map_bounded
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesUnavailable, VersionExpired
from gateway_core.kube.lists import list_all
from gateway_core.kube.repository import ListLimiter
from gateway_core.storage.limits import StoreTimeout
from gateway_core.storage.objects import ObjectStore, StoreUnavailable

Dimension = Literal["day", "key", "model", "operation"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
_FIELDS: Mapping[Dimension, str] = {
    "day": "day",
    "key": "key_name",
    "model": "model_id",
    "operation": "operation",
}
_AMOUNTS = ("requests", "failed", "input_tokens", "output_tokens", "micros")
_ATTEMPTS = 3
_DAYS_AT_ONCE = 8
_NOT_OPEN = ",".join(f"status.phase!={phase}" for phase in ("Pending", "Submitting", "Running"))
"""Leaves out most tasks that have not ended, which one list for each phase would take longer to."""
REPORT_SECONDS = 10.0
MOST_OWED = 50
MOST_KEPT = 100_000
"""Lines of days kept in memory, of about 150 bytes; the days not asked for the longest go first."""


def read_day(usage: Mapping[str, Any]) -> Iterator[Amounts]:
    """The lines of one day's usage object, or of its archived copy.

    Charges that found no row of their own are assigned to keys as far as the day's spending of each
    key shows it; their requests are unknown, and stay in the line without names.
    """
    status, day = usage.get("status") or {}, _share(usage["spec"]["day"])
    assigned, others = Counter[str](), list[Amounts]()
    for row in status.get("rows") or ():
        line = Amounts(
            day=day,
            key_name=_share(row.get("keyName")),
            model_id=_share(row.get("modelId")),
            operation=_share(row.get("operation")),
            requests=row.get("requests", 0),
            failed=row.get("failed", 0),
            input_tokens=row.get("inputTokens", 0),
            output_tokens=row.get("outputTokens", 0),
            micros=row.get("chargedMicros", 0),
        )
        if line.key_name is None and line.model_id is None:
            others.append(line)
            continue
        assigned[line.key_name or ""] += line.micros
        yield line
    for line in others:
        left = line.micros
        for entry in status.get("spent") or ():
            kind, _, name = entry["subject"].partition("/")
            micros = min(entry.get("chargedMicros", 0) - assigned[name], left)
            if kind == "key" and name != "*" and micros > 0:
                left -= micros
                yield Amounts(day=line.day, key_name=name, micros=micros)
        yield replace(line, micros=left)


def _share(text: str | None) -> str | None:
    return None if text is None else intern(text)


def sum_lines(
    lines: Iterable[Amounts], dimensions: Collection[Dimension], key_name: str | None = None
) -> list[Amounts]:
    """Sums of the lines, one for each combination of `dimensions`, in their order.

    With `key_name` only of that key. Without dimensions it is one line, even without charges. An
    unknown value of a dimension comes first.
    """
    chosen = [_FIELDS[name] for name in DIMENSIONS if name in dimensions]
    find_names: Callable[[Amounts], Any] = attrgetter(*chosen) if chosen else lambda _: ()
    sums: dict[Any, list[int]] = {} if chosen else {(): [0] * 5}
    for line in lines:
        if key_name is not None and line.key_name != key_name:
            continue
        names = find_names(line)
        known = sums.get(names)
        if known is None:
            known = sums[names] = [0] * 5
        # a report has tens of thousands of lines: an object for each sum so far would take 0.1 s
        known[0] += line.requests
        known[1] += line.failed
        known[2] += line.input_tokens
        known[3] += line.output_tokens
        known[4] += line.micros
    found = []
    for names, amounts in sums.items():
        values = (names,) if len(chosen) == 1 else names
        found.append(([part or "" for part in values], values, amounts))
    fields = (*chosen, *_AMOUNTS)
    return [
        Amounts(**dict(zip(fields, (*values, *amounts), strict=True)))
        for _, values, amounts in sorted(found, key=lambda each: each[0])
    ]


def _has_ended(run: Mapping[str, Any]) -> bool:
    return (run.get("status") or {}).get("phase") in ENDED_PHASES


class UsageReader:
    """Reads the usage of one account at a time, in a bounded time."""

    def __init__(self, kube: KubernetesClient, store: ObjectStore, lists: ListLimiter) -> None:
        self._kube = kube
        self._store = store
        self._lists = lists
        self._store_timeout = StoreTimeout(REPORT_SECONDS)
        self._kept: OrderedDict[str, tuple[str, Sequence[Amounts]]] = OrderedDict()
        self._kept_lines = 0

    async def read(
        self, account: str, first: date, last: date, owed: Collection[str] | None = None
    ) -> list[Amounts]:
        """The account's lines of these UTC days, inclusive. Unavailable.

        `owed` are names of all runs that have ended and may not be in the usage, where the caller
        knows them: to list them takes 0.1 s where the account has thousands that are.
        """
        days = first.isoformat(), last.isoformat()
        try:
            async with self._store_timeout.bound(), self._lists.take(account):
                for _ in range(_ATTEMPTS):
                    with suppress(VersionExpired):
                        return await self._read_moment(account, *days, owed)
        except (KubernetesUnavailable, StoreUnavailable) as error:
            raise Unavailable("The usage cannot be read now.") from error
        raise Unavailable("The usage cannot be read now.")

    async def _read_moment(
        self, account: str, first: str, last: str, owed: Collection[str] | None
    ) -> list[Amounts]:
        if owed is not None and len(owed) <= MOST_OWED:
            # read before the usage: one that is added in between is named there
            runs = await read_runs(self._kube, owed)
            objects = await list_usage(self._kube, account)
        else:
            # all kinds at the version of the first list: a run that ends in between counts once
            tasks, version = await self._list_runs(GatewayTask, account, _NOT_OPEN)
            (batches, _), objects = await asyncio.gather(
                self._list_runs(GatewayBatch, account, "", version),
                list_usage(self._kube, account, at_version=version),
            )
            runs = tasks + batches
        aggregated = find_aggregated(objects)
        lines: list[Amounts] = [
            charge
            for charge in map(read_charge, filter(has_charge, filter(_has_ended, runs)))
            if charge.uid not in aggregated and first <= charge.day <= last and charge.counts
        ]
        days = [obj for obj in objects if first <= obj["spec"].get("day", "") <= last]
        for obj in days:
            lines += self._read_object(obj)
        # read after the objects: a day is archived before its object is deleted
        archived = await list_archived_days(self._store, account, first, last)
        for obj in days:
            archived.pop(obj["metadata"]["uid"], None)
        for found in await map_bounded(_DAYS_AT_ONCE, self._read_archived, archived.values()):
            lines += found
        return lines

    async def _list_runs(
        self, kind: type[Resource], account: str, selector: str, version: str = ""
    ) -> tuple[list[Object], str]:
        """Runs that are not labelled as aggregated; and the version they are listed at."""
        return await list_all(
            self._kube,
            kind.plural,
            label_selector=select_unaggregated(account),
            field_selector=selector,
            at_version=version,
        )

    async def _read_archived(self, key: str) -> Sequence[Amounts]:
        """The lines of an archived day. StoreUnavailable."""
        known = self._find(key, "")
        return known or self._keep(key, "", orjson.loads(await self._store.get(key)))

    def _read_object(self, usage: Object) -> Sequence[Amounts]:
        """The lines of the usage object of a day."""
        meta = usage["metadata"]
        known = self._find(meta["uid"], meta["resourceVersion"])
        return known or self._keep(meta["uid"], meta["resourceVersion"], usage)

    def _find(self, key: str, version: str) -> Sequence[Amounts]:
        kept = self._kept.get(key)
        if kept is None or kept[0] != version:
            return ()
        self._kept.move_to_end(key)
        return kept[1]

    def _keep(self, key: str, version: str, usage: Mapping[str, Any]) -> Sequence[Amounts]:
        self._kept_lines -= len(self._kept.pop(key, ("", ()))[1])
        lines = tuple(read_day(usage))
        self._kept[key] = version, lines
        self._kept_lines += len(lines)
        while self._kept_lines > MOST_KEPT and len(self._kept) > 1:
            self._kept_lines -= len(self._kept.popitem(last=False)[1][1])
        return lines
