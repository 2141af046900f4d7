"""Usage reports: charges summed along the requested dimensions."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain
from operator import attrgetter
from sys import intern
from typing import Any, Literal, get_args

import orjson

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.errors import Unavailable
from gateway_core.api.resource import Object, Resource
from gateway_core.api.task import GatewayTask
from gateway_core.billing.charges import Amounts, Charge, read_ended
from gateway_core.billing.usage import list_pending
from gateway_core.billing.usage_store import (
    list_archived_days,
    list_usage,
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
MOST_KEPT = 100_000
"""Lines of days kept in memory, of about 150 bytes; the days not asked for the longest go first.
The sums kept beside them are at most as many again by key, and by model."""
MOST_LISTED = 256
"""Reports whose archived days stay known: at most 93 names each, of about 100 bytes."""


def read_day(usage: Mapping[str, Any]) -> Iterator[Amounts]:
    """Yield the lines of one day's usage object, or of its archived copy.

    Charges that found no row of their own are assigned to keys as far as the day's spending of each
    key shows it; their requests are unknown, and stay in the line without names.
    """
    status, day = usage.get("status") or {}, _share(usage["spec"]["day"])
    assigned, others = Counter[str](), list[Amounts]()
    for row in status.get("rows") or ():
        get = row.get
        line = Amounts(
            day=day,
            key_name=_share(get("keyName")),
            model_id=_share(get("modelId")),
            operation=_share(get("operation")),
            requests=get("requests", 0),
            failed=get("failed", 0),
            input_tokens=get("inputTokens", 0),
            output_tokens=get("outputTokens", 0),
            micros=get("chargedMicros", 0),
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


class DayLines:
    """Lines of one day, with their sums, each of which is worked out once."""

    __slots__ = ("_sums", "lines")

    def __init__(self, lines: Iterable[Amounts]) -> None:
        self.lines = tuple(lines)
        self._sums: dict[Dimension, Sequence[Amounts]] = {}

    def sum(self, dimension: Dimension) -> Sequence[Amounts]:
        """Sums by one dimension."""
        known = self._sums.get(dimension)
        if known is None:
            known = self._sums[dimension] = sum_lines(self.lines, [dimension])
        return known


@dataclass(frozen=True, slots=True)
class UsageLines:
    """Lines of the days of a report."""

    days: Sequence[DayLines]

    def __iter__(self) -> Iterator[Amounts]:
        return chain.from_iterable(day.lines for day in self.days)

    def sum(self, dimension: Dimension) -> list[Amounts]:
        """Sums by one dimension, of those of the days."""
        return sum_lines(chain.from_iterable(day.sum(dimension) for day in self.days), [dimension])

    def select(self, is_wanted: Callable[[Amounts], bool]) -> "UsageLines":
        """Return the lines that are wanted."""
        return UsageLines([DayLines(filter(is_wanted, self))])


@dataclass(frozen=True, slots=True)
class UsageDay:
    """A usage object of one day; `added` are uids of runs that it names as added, or has named."""

    day: str
    uid: str
    added: frozenset[str]
    lines: DayLines


def read_usage_day(usage: Mapping[str, Any], lines: DayLines | None = None) -> UsageDay | None:
    """Return the day of a usage object, with its `lines` where they are known.

    Return None for past days.
    """
    meta, day = usage["metadata"], usage["spec"].get("day")
    if day is None:
        return None
    added = frozenset(list_pending(usage.get("status") or {}))
    lines = lines or DayLines(read_day(usage))
    return UsageDay(_share(day) or "", meta["uid"], added, lines)


class UsageReader:
    """Reads the usage of one account at a time, in a bounded time."""

    def __init__(self, kube: KubernetesClient, store: ObjectStore, lists: ListLimiter) -> None:
        self._kube = kube
        self._store = store
        self._lists = lists
        self._store_timeout = StoreTimeout(REPORT_SECONDS)
        self._kept: OrderedDict[str, tuple[str, DayLines]] = OrderedDict()
        self._kept_lines = 0
        self._listed: OrderedDict[_Span, tuple[object, Mapping[str, str]]] = OrderedDict()

    async def read(self, account: str, first: date, last: date) -> UsageLines:
        """Return the account's lines of these UTC days, inclusive, as of now. Unavailable."""
        span = account, first.isoformat(), last.isoformat()
        async with self._reading(account):
            for _ in range(_ATTEMPTS):
                with suppress(VersionExpired):
                    return await self._read_moment(span)
        raise _unavailable()

    async def read_known(
        self,
        account: str,
        first: date,
        last: date,
        days: Sequence[UsageDay],
        charges: Iterable[Charge],
        epoch: object,
    ) -> UsageLines:
        """Return the lines that the caller knows of: all days with objects, and owed charges.

        What is archived is listed once for the same range and `epoch`, which is another one after a
        day's object has gone. Unavailable.
        """
        span, uids = (account, first.isoformat(), last.isoformat()), frozenset(d.uid for d in days)
        known, archived = self._listed.get(span), None
        if known is not None and known[0] == epoch:
            self._listed.move_to_end(span)
            archived = self._find_archived(known[1], uids)
        if archived is None:
            async with self._reading(account):
                listed = await list_archived_days(self._store, *span)
                self._listed[span] = epoch, listed
                if len(self._listed) > MOST_LISTED:
                    self._listed.popitem(last=False)
                archived = await self._read_archived(listed, uids)
        return _compose(span, days, charges, archived)

    @asynccontextmanager
    async def _reading(self, account: str) -> AsyncIterator[None]:
        try:
            async with self._store_timeout.bound(), self._lists.take(account):
                yield
        except (KubernetesUnavailable, StoreUnavailable) as error:
            raise _unavailable() from error

    async def _read_moment(self, span: "_Span") -> UsageLines:
        account = span[0]
        # all kinds at the version of the first list: a run that ends in between counts once
        tasks, version = await self._list_runs(GatewayTask, account, _NOT_OPEN)
        (batches, _), objects = await asyncio.gather(
            self._list_runs(GatewayBatch, account, "", version),
            list_usage(self._kube, account, at_version=version),
        )
        days = [day for obj in objects if (day := self._read_object(obj)) is not None]
        # read after the objects: a day is archived before its object is deleted
        listed = await list_archived_days(self._store, *span)
        archived = await self._read_archived(listed, {day.uid for day in days})
        return _compose(span, days, filter(None, map(read_ended, tasks + batches)), archived)

    async def _list_runs(
        self, kind: type[Resource], account: str, selector: str, version: str = ""
    ) -> tuple[list[Object], str]:
        """Return runs that are not labelled as aggregated, and the version they are listed at."""
        return await list_all(
            self._kube,
            kind.plural,
            label_selector=select_unaggregated(account),
            field_selector=selector,
            at_version=version,
        )

    def _find_archived(
        self, listed: Mapping[str, str], objects: Collection[str]
    ) -> list[DayLines] | None:
        """Return the archived days without an object; None where one has to be read."""
        found = [self._find(key, "") for uid, key in listed.items() if uid not in objects]
        days = [day for day in found if day is not None]
        return days if len(days) == len(found) else None

    async def _read_archived(
        self, listed: Mapping[str, str], objects: Collection[str]
    ) -> list[DayLines]:
        """Return the archived days without an object. StoreUnavailable."""
        keys = [key for uid, key in listed.items() if uid not in objects]
        return await map_bounded(_DAYS_AT_ONCE, self._read_copy, keys)

    async def _read_copy(self, key: str) -> DayLines:
        """Return the lines of an archived day. StoreUnavailable."""
        known = self._find(key, "")
        if known is not None:
            return known
        return self._keep(key, "", DayLines(read_day(orjson.loads(await self._store.get(key)))))

    def _read_object(self, usage: Object) -> UsageDay | None:
        """Return the day of a usage object."""
        meta = usage["metadata"]
        day = read_usage_day(usage, self._find(meta["uid"], meta["resourceVersion"]))
        if day is not None:
            self._keep(day.uid, meta["resourceVersion"], day.lines)
        return day

    def _find(self, key: str, version: str) -> DayLines | None:
        kept = self._kept.get(key)
        if kept is None or kept[0] != version:
            return None
        self._kept.move_to_end(key)
        return kept[1]

    def _keep(self, key: str, version: str, lines: DayLines) -> DayLines:
        before = self._kept.pop(key, None)
        self._kept_lines += len(lines.lines) - (len(before[1].lines) if before else 0)
        self._kept[key] = version, lines
        while self._kept_lines > MOST_KEPT and len(self._kept) > 1:
            self._kept_lines -= len(self._kept.popitem(last=False)[1][1].lines)
        return lines


_Span = tuple[str, str, str]
"""An account, and the first and the last day of a report."""


def _compose(
    span: _Span, days: Sequence[UsageDay], charges: Iterable[Charge], archived: Sequence[DayLines]
) -> UsageLines:
    _, first, last = span
    added = frozenset[str]().union(*(day.added for day in days))
    owed = [
        charge
        for charge in charges
        if charge.uid not in added and first <= charge.day <= last and charge.counts
    ]
    shown = [day.lines for day in days if first <= day.day <= last]
    return UsageLines([DayLines(owed), *shown, *archived])


def _unavailable() -> Unavailable:
    return Unavailable("The usage cannot be read now.")
