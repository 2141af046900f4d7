"""Usage reports: charges summed along the requested dimensions."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.task import TERMINAL_PHASES, GatewayTask
from gateway_core.billing.usage import ENDED_PHASES, Charge, has_charge, read_charge, sum_usage
from gateway_core.billing.usage_store import list_usage, read_past_days, select_unfolded
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesUnavailable, VersionExpired
from gateway_core.storage.objects import ObjectStore

Dimension = Literal["day", "key", "model", "operation"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
_FIELDS: Mapping[Dimension, str] = {
    "day": "day",
    "key": "key_name",
    "model": "model_id",
    "operation": "operation",
}


@dataclass(frozen=True, slots=True)
class Line:
    """Sums of one day, key, model and operation; None where that is not told or not asked for.

    `day` is `2026-11-21`, `micros` are micro-dollars.
    """

    day: str | None
    key_name: str | None
    model_id: str | None
    operation: str | None
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    micros: int = 0


def read_day(usage: Mapping[str, Any]) -> Iterator[Line]:
    """The lines of one day's usage object, or of its copy in the object store.

    What found no row of its own is told by key as far as the day's spending of each key tells it;
    how many requests that were is not known, and stays in the line without names.
    """
    status = usage.get("status") or {}
    told, others = Counter[str](), list[Line]()
    for row in status.get("rows") or ():
        line = Line(
            day=usage["spec"]["day"],
            key_name=row.get("keyName"),
            model_id=row.get("modelId"),
            operation=row.get("operation"),
            requests=row.get("requests", 0),
            input_tokens=row.get("inputTokens", 0),
            output_tokens=row.get("outputTokens", 0),
            micros=row.get("chargedMicros", 0),
        )
        if line.key_name is None and line.model_id is None:
            others.append(line)
            continue
        told[line.key_name or ""] += line.micros
        yield line
    for line in others:
        left = line.micros
        for entry in status.get("spent") or ():
            kind, _, name = entry["subject"].partition("/")
            micros = min(entry.get("chargedMicros", 0) - told[name], left)
            if kind == "key" and name != "*" and micros > 0:
                left -= micros
                yield Line(line.day, name, None, None, micros=micros)
        yield replace(line, micros=left)


def to_line(charge: Charge) -> Line:
    """The line of a run that has ended and is in no usage object yet."""
    return Line(
        day=charge.day,
        key_name=charge.key_name,
        model_id=charge.model_id,
        operation=charge.operation,
        requests=charge.requests,
        input_tokens=charge.input_tokens,
        output_tokens=charge.output_tokens,
        micros=charge.micros,
    )


def sum_lines(
    lines: Iterable[Line], dimensions: Collection[Dimension], key_name: str | None = None
) -> list[Line]:
    """The lines added up, one for each combination of `dimensions`, sorted by them in their order.

    With `key_name` only that key's. Without dimensions it is one line, also where nothing was
    charged; what is not told of a dimension comes first.
    """
    chosen = [_FIELDS[name] for name in DIMENSIONS if name in dimensions]
    nothing = Line(None, None, None, None)
    sums: dict[tuple[str | None, ...], Line] = {} if chosen else {(): nothing}
    for line in lines:
        if key_name is not None and line.key_name != key_name:
            continue
        names = tuple(getattr(line, field) for field in chosen)
        told: dict[str, Any] = dict(zip(chosen, names, strict=True))
        known = sums.get(names) or replace(nothing, **told)
        sums[names] = replace(
            known,
            requests=known.requests + line.requests,
            input_tokens=known.input_tokens + line.input_tokens,
            output_tokens=known.output_tokens + line.output_tokens,
            micros=known.micros + line.micros,
        )
    return [sums[names] for names in sorted(sums, key=lambda key: [part or "" for part in key])]


_ATTEMPTS = 3


async def read_lines(
    kube: KubernetesClient, store: ObjectStore, account: str, first: str, last: str
) -> list[Line]:
    """The account's lines of the UTC days from `first` to `last` (`2026-11-21`), both included.

    Raises KubernetesUnavailable, StoreUnavailable.
    """
    for _ in range(_ATTEMPTS):
        with suppress(VersionExpired):
            return await _read_moment(kube, store, account, first, last)
    raise KubernetesUnavailable(f"the usage of {account} cannot be listed in time")


async def _read_moment(
    kube: KubernetesClient, store: ObjectStore, account: str, first: str, last: str
) -> list[Line]:
    charges: dict[str, Charge] = {}
    version = ""
    kinds = ((GatewayTask.plural, TERMINAL_PHASES), (GatewayBatch.plural, ENDED_PHASES))
    for plural, phase in ((plural, p) for plural, phases in kinds for p in sorted(phases)):
        token = None
        while True:
            page = await kube.list_page(
                plural,
                token=token,
                label_selector=select_unfolded(account),
                field_selector=f"status.phase={phase}",
                at_version=version if token is None else "",
            )
            version = version or page.resource_version
            runs = filter(has_charge, page.items)
            charges |= {run["metadata"]["uid"]: read_charge(run) for run in runs}
            token = page.next_token
            if token is None:
                break
    objects = await list_usage(kube, account, at_version=version)
    folded = sum_usage(objects).folded
    days = [obj for obj in objects if first <= obj["spec"].get("day", "") <= last]
    known = {obj["metadata"]["uid"] for obj in days}
    # read after the objects: a day is kept before its object goes
    kept = await read_past_days(store, account, first, last)
    days += [day for day in kept if day["metadata"]["uid"] not in known]
    lines = [line for day in days for line in read_day(day)]
    return lines + [
        to_line(charge)
        for uid, charge in charges.items()
        if uid not in folded and first <= charge.day <= last and charge.counts
    ]
