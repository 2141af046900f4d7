"""Usage reports: charges summed along the requested dimensions."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import Any, Literal, get_args

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.errors import Unavailable
from gateway_core.api.task import TERMINAL_PHASES, GatewayTask
from gateway_core.billing.charges import ENDED_PHASES, Amounts, Charge, has_charge, read_charge
from gateway_core.billing.usage import sum_usage
from gateway_core.billing.usage_store import list_usage, read_archived_days, select_unaggregated
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
_ATTEMPTS = 3
REPORT_SECONDS = 10.0


def read_day(usage: Mapping[str, Any]) -> Iterator[Amounts]:
    """The lines of one day's usage object, or of its archived copy.

    Charges that found no row of their own are assigned to keys as far as the day's spending of each
    key shows it; their requests are unknown, and stay in the line without names.
    """
    status = usage.get("status") or {}
    assigned, others = Counter[str](), list[Amounts]()
    for row in status.get("rows") or ():
        line = Amounts(
            day=usage["spec"]["day"],
            key_name=row.get("keyName"),
            model_id=row.get("modelId"),
            operation=row.get("operation"),
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


def sum_lines(
    lines: Iterable[Amounts], dimensions: Collection[Dimension], key_name: str | None = None
) -> list[Amounts]:
    """Sums of the lines, one for each combination of `dimensions`, in their order.

    With `key_name` only of that key. Without dimensions it is one line, even without charges. An
    unknown value of a dimension comes first.
    """
    chosen = [_FIELDS[name] for name in DIMENSIONS if name in dimensions]
    sums: dict[tuple[str | None, ...], Amounts] = {} if chosen else {(): Amounts()}
    for line in lines:
        if key_name is not None and line.key_name != key_name:
            continue
        names: dict[str, Any] = {field: getattr(line, field) for field in chosen}
        known = sums.get(tuple(names.values())) or Amounts(**names)
        sums[tuple(names.values())] = replace(
            known,
            requests=known.requests + line.requests,
            failed=known.failed + line.failed,
            input_tokens=known.input_tokens + line.input_tokens,
            output_tokens=known.output_tokens + line.output_tokens,
            micros=known.micros + line.micros,
        )
    return [sums[names] for names in sorted(sums, key=lambda key: [part or "" for part in key])]


class UsageReader:
    """Reads the usage of one account at a time, in a bounded time."""

    def __init__(self, kube: KubernetesClient, store: ObjectStore, lists: ListLimiter) -> None:
        self._kube = kube
        self._store = store
        self._lists = lists
        self._store_timeout = StoreTimeout(REPORT_SECONDS)

    async def read(self, account: str, first: date, last: date) -> list[Amounts]:
        """The account's lines of these UTC days, inclusive. Unavailable."""
        try:
            async with self._store_timeout.bound(), self._lists.take(account):
                return await read_lines(
                    self._kube, self._store, account, first.isoformat(), last.isoformat()
                )
        except (KubernetesUnavailable, StoreUnavailable) as error:
            raise Unavailable("The usage cannot be read now.") from error


async def read_lines(
    kube: KubernetesClient, store: ObjectStore, account: str, first: str, last: str
) -> list[Amounts]:
    """The account's lines of the UTC days from `first` to `last` (`2026-11-21`), inclusive.

    Raises KubernetesUnavailable, StoreUnavailable.
    """
    for _ in range(_ATTEMPTS):
        with suppress(VersionExpired):
            return await _read_moment(kube, store, account, first, last)
    raise KubernetesUnavailable(f"the usage of {account} cannot be listed in time")


async def _read_moment(
    kube: KubernetesClient, store: ObjectStore, account: str, first: str, last: str
) -> list[Amounts]:
    charges: dict[str, Charge] = {}
    version = ""
    kinds = ((GatewayTask.plural, TERMINAL_PHASES), (GatewayBatch.plural, ENDED_PHASES))
    for plural, phase in ((plural, p) for plural, phases in kinds for p in sorted(phases)):
        # all kinds and phases at the version of the first list: a run that ends in between
        # counts once
        runs, version = await list_all(
            kube,
            plural,
            label_selector=select_unaggregated(account),
            field_selector=f"status.phase={phase}",
            at_version=version,
        )
        charges |= {run["metadata"]["uid"]: read_charge(run) for run in filter(has_charge, runs)}
    objects = await list_usage(kube, account, at_version=version)
    aggregated = sum_usage(objects).aggregated
    days = [obj for obj in objects if first <= obj["spec"].get("day", "") <= last]
    known = {obj["metadata"]["uid"] for obj in days}
    # read after the objects: a day is archived before its object is deleted
    archived = await read_archived_days(store, account, first, last)
    days += [day for day in archived if day["metadata"]["uid"] not in known]
    lines = [line for day in days for line in read_day(day)]
    return lines + [
        charge
        for uid, charge in charges.items()
        if uid not in aggregated and first <= charge.day <= last and charge.counts
    ]
