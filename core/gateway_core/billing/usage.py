"""Sums of what ended runs cost, and the names that keep each from being added twice.

Pure. The rule of every fold, of a task into its day and of a day into the sum of past days: one
write adds the amounts and the names; a name that is there is not added again; a name goes only once
what it stands for is known to be marked (a task's label) or gone (a day's object). What comes from
a process's journal needs no names: the write tells how far the journal was read.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway_core.api import batch
from gateway_core.api.batch import ACTION
from gateway_core.api.ids import is_batch
from gateway_core.api.limits import list_subjects
from gateway_core.api.money import to_decimal_text
from gateway_core.api.task import TERMINAL_PHASES
from gateway_core.api.usage import MINUTES_KEPT, MOST_ROWS
from gateway_core.billing.spending import (
    MINUTES_SPENT,
    Spending,
    SpentSum,
    absorb_spending,
    add_spending,
    sum_spending,
)

Sums = dict[str, Any]
_AMOUNTS = ("requests", "failed", "chargedMicros")
_TOKENS = ("inputTokens", "outputTokens")
_NAMES = ("keyName", "modelId", "operation")


@dataclass(frozen=True, slots=True)
class Charge:
    """One ended run: what it adds to the day it ended on. `minute` is of that day, 0 to 1439.

    `requests` are the calls it stands for that reached an upstream (contract §9.0), each line of a
    batch that was sent being one, and `failed` those of them that failed.

    `subjects` are what it counts under (`contract.limits.list_subjects`).
    """

    name: str
    uid: str
    account: str
    day: str
    minute: int
    micros: int
    failed: int
    key_name: str | None
    model_id: str
    operation: str
    subjects: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 1

    @property
    def counts(self) -> bool:
        """Whether it adds anything: a run that reached no upstream is to take no row."""
        return bool(self.requests or self.micros)

    @property
    def time(self) -> str:
        """When it ended, to the minute."""
        return f"{self.day}T{self.minute // 60:02}:{self.minute % 60:02}:00Z"


@dataclass(frozen=True, slots=True)
class Balance:
    """What an account's usage objects say: the sum of all, by day and by subject.

    `folded` are the uids of tasks named in them; `journals` says by day how far each process's
    journal is in them.
    """

    charged: int
    by_day: Mapping[str, int]
    folded: frozenset[str]
    spent: dict[str, SpentSum] = field(default_factory=dict)
    journals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def read_charge(task: Mapping[str, Any]) -> Charge:
    """The charge of an ended task or batch; the same whenever and by whomever it is read."""
    meta, request, status = task["metadata"], task["spec"]["request"], task["status"]
    requests, failed = _count_requests(status)
    about = {"action": ACTION, **status} if is_batch(meta["name"]) else request
    ended = status.get("completionTime") or meta["creationTimestamp"]
    moment = datetime.fromisoformat(ended).astimezone(UTC)
    return Charge(
        name=meta["name"],
        uid=meta["uid"],
        account=request["accountName"],
        day=moment.date().isoformat(),
        minute=moment.hour * 60 + moment.minute,
        micros=status.get("chargedMicros") or 0,
        requests=requests,
        failed=failed,
        key_name=request.get("keyName"),
        model_id=about["modelId"],
        operation=f"{about['service']}/{about['action']}",
        subjects=list_subjects(request),
    )


def _count_requests(status: Mapping[str, Any]) -> tuple[int, int]:
    """The calls of an ended run that reached an upstream, and those of them that failed."""
    counts = status.get("counts")
    if counts:
        # batches that ended before `sent` was recorded
        sent = counts.get("sent", counts["completed"] + counts["failed"])
        return sent, sent - counts["completed"]
    if status["phase"] != "Failed":
        return 1, 0
    reached = int(bool(status.get("upstream")))
    return reached, reached


def has_charge(run: Mapping[str, Any]) -> bool:
    """Whether an ended run is told of in its account's usage: a batch is once it has begun."""
    status = run.get("status") or {}
    return not is_batch(run["metadata"]["name"]) or bool(status.get("startTime"))


def list_journals(status: Mapping[str, Any]) -> dict[str, int]:
    """How far each process's journal is in the sums: process -> sequence."""
    return {mark["process"]: mark["sequence"] for mark in status.get("journal") or ()}


def list_pending(status: Mapping[str, Any]) -> dict[str, str]:
    """uid -> name of what is in the sums and not yet known to be marked."""
    return {entry["uid"]: entry["name"] for entry in status.get("pending") or ()}


def add_charges(
    status: Mapping[str, Any], day: str, charges: Iterable[Charge], now: datetime
) -> dict[str, Any]:
    """The status with those charges of `day` in it that it does not name yet."""
    known = list_pending(status)
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
    """The status with those charges of `day` in it, and journals read as far as `journals` tells.

    The caller leaves out what `list_journals` says is in the sums.
    """
    marks = {**list_journals(status), **journals}
    return {**_add_runs(status, day, charges, now), "journal": _write_journals(marks)}


def drop_journals(status: Mapping[str, Any], ended: Collection[str]) -> dict[str, Any]:
    """The status without the marks of those processes, of whose journals nothing is left."""
    marks = list_journals(status).items()
    return {**status, "journal": _write_journals({p: n for p, n in marks if p not in ended})}


def _add_runs(
    status: Mapping[str, Any], day: str, charges: Iterable[Charge], now: datetime
) -> dict[str, Any]:
    amounts = [(charge, _amounts(charge)) for charge in charges if charge.counts]
    minutes = _read_parts(status.get("minutes"), "minute")
    hours = _read_parts(status.get("hours"), "hour")
    rows = {tuple(row.get(name) for name in _NAMES): row for row in status.get("rows") or ()}
    for charge, amount in amounts:
        minutes[charge.minute] = _add(minutes.get(charge.minute), amount)
        hours[charge.minute // 60] = _add(hours.get(charge.minute // 60), amount)
        names: tuple[str | None, ...] = (charge.key_name, charge.model_id, charge.operation)
        if names not in rows and len(rows) >= MOST_ROWS:
            names = (None, None, None)
        rows[names] = _add(rows.get(names), amount)
    # an owner whose clock is behind finds minutes of another that are yet to come
    first = _oldest_minute(day, now, MINUTES_KEPT)
    oldest = max([first, *sorted(minutes)[-(MINUTES_KEPT + 2) :][:1]])
    runs = (Spending(c.subjects, c.minute, c.micros, c.time) for c, _ in amounts if c.subjects)
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
    """The status without the names of those uids, which are known to be marked or gone."""
    kept = {uid: name for uid, name in list_pending(status).items() if uid not in marked}
    return {**status, "pending": _write_pending(kept)}


def absorb_day(status: Mapping[str, Any], day: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of past days with the closed object of a day in it, if it does not name that yet."""
    known, meta = list_pending(status), day["metadata"]
    if meta["uid"] in known:
        return dict(status)
    through = max(status.get("throughDay") or "", day["spec"]["day"])
    added = day.get("status") or {}
    return {
        **_add_totals(status, [added]),
        "spent": absorb_spending(status.get("spent"), added.get("spent"), day["spec"]["day"]),
        "throughDay": through,
        "pending": _write_pending({**known, meta["uid"]: meta["name"]}),
    }


def sum_usage(objects: Sequence[Mapping[str, Any]], subjects: Iterable[str] = ()) -> Balance:
    """What an account's usage objects come to, all read at one moment of the record.

    `subjects` are those that may have no entries of their own (`spending.shares_entries`).
    """
    absorbed = {
        uid
        for obj in objects
        if "day" not in obj["spec"]
        for uid in list_pending(obj.get("status") or {})
    }
    charged, by_day, folded = 0, Counter[str](), set[str]()
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
        folded.update(list_pending(status))
        if obj["metadata"]["uid"] not in absorbed:
            charged += micros
    spent = sum_spending(objects, absorbed, subjects)
    return Balance(charged, by_day, frozenset(folded), spent, journals)


def _amounts(charge: Charge) -> Sums:
    return {
        "requests": charge.requests,
        "failed": int(charge.failed),
        "chargedMicros": charge.micros,
        "inputTokens": charge.input_tokens,
        "outputTokens": charge.output_tokens,
    }


def _sums(part: Mapping[str, Any]) -> Sums:
    """Amounts, and tokens where there are any: most runs have none, and there are many parts."""
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
    """The first minute of `day` that is kept, where they are kept for so many."""
    since = now.astimezone(UTC) - timedelta(minutes=kept)
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
    return int((since - begin).total_seconds() // 60)


ENDED_PHASES = TERMINAL_PHASES | frozenset(batch.TERMINAL_PHASES)
"""Of runs of both kinds, tasks and batches; their words mean the same."""
