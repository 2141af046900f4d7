"""Roll-ups of charges: of ended runs into the day, and of closed days into the sum of past days.

Each charge is added once: one write adds the amounts and the names of what they are of, a name that
is present is not added again, and a name is dropped only once its task is labelled, or its day's
object is deleted. Journals need no names: the write records how far each was read.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway_core.api.money import to_decimal_text
from gateway_core.api.usage import MINUTES_KEPT, MOST_ROWS
from gateway_core.billing.charges import Charge
from gateway_core.billing.spending import (
    MINUTES_SPENT,
    SpentSum,
    add_spending,
    roll_up_spending,
    sum_spending,
)

Sums = dict[str, Any]
_AMOUNTS = ("requests", "failed", "chargedMicros")
_TOKENS = ("inputTokens", "outputTokens")
_NAMES = ("keyName", "modelId", "operation")


@dataclass(frozen=True, slots=True)
class Balance:
    """Sums of an account's usage objects: of all, by day and by subject.

    `aggregated` are uids of tasks whose charges are in them; `journals` maps days to processes to
    the last sequence of their journal that is in them.
    """

    charged: int
    by_day: Mapping[str, int]
    aggregated: frozenset[str]
    spent: dict[str, SpentSum] = field(default_factory=dict)
    journals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def list_journals(status: Mapping[str, Any]) -> dict[str, int]:
    """Journal marks: process -> the last sequence that is in the sums."""
    return {mark["process"]: mark["sequence"] for mark in status.get("journal") or ()}


def list_pending(status: Mapping[str, Any]) -> dict[str, str]:
    """uid -> name of the runs in the sums that are not known to be labelled."""
    return {entry["uid"]: entry["name"] for entry in status.get("pending") or ()}


def add_charges(
    status: Mapping[str, Any], day: str, charges: Iterable[Charge], now: datetime
) -> dict[str, Any]:
    """Return the status of `day` with those charges that it does not name yet."""
    known = list_pending(status)
    # uids, not names: a deleted task may be created again under its name
    new = {charge.uid: charge for charge in charges if charge.uid not in known}
    names = {**known, **{uid: charge.name for uid, charge in new.items()}}
    return {**_add_runs(status, day, new.values(), now), "pending": _write_pending(names)}


def add_calls(
    status: Mapping[str, Any],
    day: str,
    charges: Iterable[Charge],
    journals: Mapping[str, int],
    now: datetime,
) -> dict[str, Any]:
    """Return the status of `day` with those charges and journal marks.

    The caller leaves out charges that `list_journals` shows to be in the sums.
    """
    marks = {**list_journals(status), **journals}
    return {**_add_runs(status, day, charges, now), "journal": _write_journals(marks)}


def drop_journals(status: Mapping[str, Any], ended: Collection[str]) -> dict[str, Any]:
    """Return the status without the marks of processes whose journals are gone."""
    marks = list_journals(status).items()
    return {**status, "journal": _write_journals({p: n for p, n in marks if p not in ended})}


def _add_runs(
    status: Mapping[str, Any], day: str, charges: Iterable[Charge], now: datetime
) -> dict[str, Any]:
    amounts = [(charge, _describe_amounts(charge)) for charge in charges if charge.counts]
    minutes = _read_parts(status.get("minutes"), "minute")
    hours = _read_parts(status.get("hours"), "hour")
    rows = {tuple(row.get(name) for name in _NAMES): row for row in status.get("rows") or ()}
    for charge, amount in amounts:
        minutes[charge.minute] = _add(minutes.get(charge.minute), amount)
        hours[charge.minute // 60] = _add(hours.get(charge.minute // 60), amount)
        names: tuple[str | None, ...] = (charge.key_name, charge.model_id, charge.operation)
        # bounds the object; reports assign such charges to keys by their spending
        if names not in rows and len(rows) >= MOST_ROWS:
            names = (None, None, None)
        rows[names] = _add(rows.get(names), amount)
    # an owner whose clock is slow finds minutes of another owner that are in its future
    first = _oldest_minute(day, now, MINUTES_KEPT)
    oldest = max([first, *sorted(minutes)[-(MINUTES_KEPT + 2) :][:1]])
    runs = (charge for charge, _ in amounts if charge.subjects)
    return {
        **status,
        **_add_totals(status, (amount for _, amount in amounts)),
        "minutes": _write_parts({m: s for m, s in minutes.items() if m >= oldest}, "minute"),
        "hours": _write_parts(hours, "hour"),
        "rows": [
            {**{n: v for n, v in zip(_NAMES, names, strict=True) if v is not None}, **_sums(row)}
            for names, row in rows.items()
        ],
        "spent": add_spending(status.get("spent"), runs, _oldest_minute(day, now, MINUTES_SPENT)),
    }


def drop_pending(status: Mapping[str, Any], marked: Collection[str]) -> dict[str, Any]:
    """Return the status without the names of those uids, which are labelled or gone."""
    kept = {uid: name for uid, name in list_pending(status).items() if uid not in marked}
    return {**status, "pending": _write_pending(kept)}


def roll_up_day(status: Mapping[str, Any], day: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of past days with the closed object of a day, unless that is named in it."""
    known, meta = list_pending(status), day["metadata"]
    if meta["uid"] in known:
        return dict(status)
    through = max(status.get("throughDay") or "", day["spec"]["day"])
    added = day.get("status") or {}
    return {
        **_add_totals(status, [added]),
        "spent": roll_up_spending(status.get("spent"), added.get("spent"), day["spec"]["day"]),
        "throughDay": through,
        "pending": _write_pending({**known, meta["uid"]: meta["name"]}),
    }


def sum_usage(objects: Sequence[Mapping[str, Any]], subjects: Iterable[str] = ()) -> Balance:
    """Return the sums of an account's usage objects, all read at one version.

    `subjects` are those that may have no entry of their own (`spending.shares_entries`).
    """
    rolled_up = {
        uid
        for obj in objects
        if "day" not in obj["spec"]
        for uid in list_pending(obj.get("status") or {})
    }
    charged, by_day = 0, Counter[str]()
    journals: dict[str, dict[str, int]] = {}
    for obj in objects:
        status = obj.get("status") or {}
        micros = status.get("chargedMicros", 0)
        day = obj["spec"].get("day")
        if day is None:
            charged += micros
            continue
        by_day[day] += micros
        journals[day] = list_journals(status)
        if obj["metadata"]["uid"] not in rolled_up:
            charged += micros
    spent = sum_spending(objects, rolled_up, subjects)
    return Balance(charged, by_day, find_aggregated(objects), spent, journals)


def find_aggregated(objects: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the uids of runs that the usage objects of days name as added."""
    return frozenset(
        uid
        for obj in objects
        if "day" in obj["spec"]
        for uid in list_pending(obj.get("status") or {})
    )


def _describe_amounts(charge: Charge) -> Sums:
    return {
        "requests": charge.requests,
        "failed": int(charge.failed),
        "chargedMicros": charge.micros,
        "inputTokens": charge.input_tokens,
        "outputTokens": charge.output_tokens,
    }


def _sums(part: Mapping[str, Any]) -> Sums:
    """Amounts; tokens only where there are any: an object has many parts, mostly without."""
    tokens = {name: part[name] for name in _TOKENS if part.get(name)}
    return {name: part.get(name, 0) for name in _AMOUNTS} | tokens


def _add(part: Mapping[str, Any] | None, amount: Mapping[str, Any]) -> Sums:
    names = (*_AMOUNTS, *_TOKENS)
    return _sums({name: (part or {}).get(name, 0) + amount.get(name, 0) for name in names})


def _add_totals(status: Mapping[str, Any], amounts: Iterable[Mapping[str, Any]]) -> Sums:
    total = _sums(status)
    for amount in amounts:
        total = _add(total, amount)
    return {**total, "cost": to_decimal_text(total["chargedMicros"])}


def _read_parts(parts: Iterable[Mapping[str, Any]] | None, key: str) -> dict[int, Sums]:
    return {part[key]: _sums(part) for part in parts or ()}


def _write_parts(parts: Mapping[int, Sums], key: str) -> list[Sums]:
    return [{key: number, **parts[number]} for number in sorted(parts)]


def _write_pending(pending: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "uid": uid} for uid, name in pending.items()]


def _write_journals(marks: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"process": process, "sequence": marks[process]} for process in sorted(marks)]


def _oldest_minute(day: str, now: datetime, kept: int) -> int:
    """Return the first minute of `day` to keep, where `kept` minutes are kept."""
    since = now.astimezone(UTC) - timedelta(minutes=kept)
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
    return int((since - begin).total_seconds() // 60)
