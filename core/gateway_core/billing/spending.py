"""What each key and guardrail of an account was charged, in the buckets that windows are made of.

Pure; the `spent` of usage objects, of a day and of the days before. An object has to stay well
below what etcd takes (1.5 MB), so the buckets are bounded, and where they have to be coarser or
subjects can no longer be told apart, it is so that a limit never counts less than was spent:

- minutes are kept for a little more than the hour that a window of minutes lasts;
- where the text of all buckets is too long, neighbours are put together in the newest of them, so
  that a charge counts longer than it should, by the width of what was put together;
- subjects beyond `MOST_SUBJECTS` share one entry, `key/*` or `guardrail/*`, and each subject that
  has no entry of its own is taken to have spent all of that. Entries are never removed, and one
  that is made where there is a shared one begins with its sums: who has one finds everything in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from gateway_core.api.account import Funds
from gateway_core.api.limits import SpendLimit
from gateway_core.api.money import to_decimal_text
from gateway_core.api.times import format_time
from gateway_core.api.usage import MOST_SUBJECTS
from gateway_core.billing.windows import Buckets, find_reset, number_day, sum_window

MINUTES_SPENT = 75
"""An hour, and what the clocks of those who fold may differ by."""
DAYS_SPENT = 40
"""A month, and the days that have objects of their own."""
MOST_BUCKET_BYTES = 384 * 1024
"""All minutes and hours of one object, or all its days, as text."""
_STEPS = ((1, 1), (5, 1), (15, 1), (30, 1), (60, 1), (60, 3), (60, 6), (120, 24))
"""Widths in minutes and hours that are tried one after the other."""
_DAY_STEPS = (2, 3, 5, 10, 20, DAYS_SPENT)
"""The same in days, of past days."""
_DAY_BYTES = len("2026-01-01:,")

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spending:
    """One run's part: what `subjects` were charged in a `minute` of the day, which is at `time`."""

    subjects: tuple[str, ...]
    minute: int
    micros: int
    time: str


@dataclass(slots=True)
class SpentSum:
    """What one subject was charged, while it is added up from several places.

    `last` is when a run last counted under it, to the minute; empty where that is not known.
    """

    minutes: dict[int, int] = field(default_factory=dict)
    hours: dict[int, int] = field(default_factory=dict)
    days: dict[int, int] = field(default_factory=dict)
    total: int = 0
    last: str = ""

    def add(self, micros: int, day: int, minute: int) -> None:
        """Adds one charge; `minute` is of the day, which is numbered from the epoch."""
        _add(self.minutes, day * 1440 + minute, micros)
        _add(self.hours, day * 24 + minute // 60, micros)
        _add(self.days, day, micros)
        self.total += micros

    def freeze(self) -> Buckets:
        """The same, as windows are counted from."""
        return Buckets(self.minutes, self.hours, self.days, self.total)


def name_others(subject: str) -> str:
    """The entry that `subject` shares with others where it has none of its own."""
    return f"{subject.partition('/')[0]}/*"


def add_spending(
    spent: Iterable[Mapping[str, Any]] | None, runs: Iterable[Spending], oldest_minute: int
) -> list[Entry]:
    """The `spent` of a day with `runs` of that day in it; minutes before the oldest are dropped."""
    entries: dict[str, Entry] = {entry["subject"]: dict(entry) for entry in spent or ()}
    touched: dict[str, list[Spending]] = {}
    for run in runs:
        # one run is counted once in what several of its guardrails share
        for subject in {_find_entry(entries, subject): None for subject in run.subjects}:
            touched.setdefault(subject, []).append(run)
    for subject, parts in touched.items():
        entry = entries[subject]
        minutes, hours = _parse(entry.get("minutes")), _parse(entry.get("hours"))
        for run in parts:
            entry["chargedMicros"] += run.micros
            entry["lastTime"] = max(entry.get("lastTime") or "", run.time)
            if run.micros:
                _add(minutes, run.minute, run.micros)
                _add(hours, run.minute // 60, run.micros)
        minutes = {minute: sum_ for minute, sum_ in minutes.items() if minute >= oldest_minute}
        if len(minutes) > 2 * MINUTES_SPENT:
            minutes = _coarsen(minutes, 60)
        _write(entry, minutes=minutes, hours=hours)
    _fit(entries.values(), oldest_minute)
    return list(entries.values())


def absorb_spending(
    before: Iterable[Mapping[str, Any]] | None, spent: Iterable[Mapping[str, Any]] | None, day: str
) -> list[Entry]:
    """The `spent` of past days with that of a closed day in it: whole days, and totals for ever.

    What the day told in a shared entry any of those may have spent that it does not tell apart.
    """
    entries: dict[str, Entry] = {entry["subject"]: dict(entry) for entry in before or ()}
    number = number_day(date.fromisoformat(day))
    parts = {part["subject"]: part for part in spent or ()}
    for subject, part in parts.items():
        if not subject.endswith("/*"):
            _absorb(entries[_find_entry(entries, subject)], part, number)
    for shared, part in parts.items():
        if shared.endswith("/*"):
            _find_entry(entries, shared)
            for subject, entry in entries.items():
                if (subject == shared or subject not in parts) and name_others(subject) == shared:
                    _absorb(entry, part, number)
    _fit_days(entries.values())
    return list(entries.values())


def sum_spending(
    objects: Sequence[Mapping[str, Any]], absorbed: Iterable[str], names: Iterable[str] = ()
) -> dict[str, SpentSum]:
    """What each subject was charged according to the usage objects of one account.

    `absorbed` are the uids of days that are in the sum of past days already. `names` are subjects
    that may have no entry of their own (`shares_entries`). Minutes of the newest two days only.
    """
    tables = [
        {e["subject"]: e for e in (o.get("status") or {}).get("spent") or ()} for o in objects
    ]
    subjects = {subject for table in tables for subject in table} | set(names)
    subjects = {subject for subject in subjects if not subject.endswith("/*")}
    days = sorted(obj["spec"]["day"] for obj in objects if obj["spec"].get("day"))
    sums = {subject: SpentSum() for subject in subjects}
    gone = set(absorbed)
    for obj, table in zip(objects, tables, strict=True):
        day = obj["spec"].get("day")
        in_sum = obj["metadata"]["uid"] in gone
        for subject in subjects if any(name.endswith("/*") for name in table) else table:
            entry = table.get(subject) or table.get(name_others(subject))
            if entry is None:
                continue
            found = sums[subject]
            if subject in table:
                found.last = max(found.last, entry.get("lastTime") or "")
            if day is None:
                found.total += entry.get("chargedMicros", 0)
                for number, micros in _parse_days(entry.get("days")).items():
                    _add(found.days, number, micros)
                continue
            number = number_day(date.fromisoformat(day))
            if day in days[-2:]:
                for minute, micros in _parse(entry.get("minutes")).items():
                    _add(found.minutes, number * 1440 + minute, micros)
            for hour, micros in _parse(entry.get("hours")).items():
                _add(found.hours, number * 24 + hour, micros)
            if not in_sum and entry.get("chargedMicros"):
                _add(found.days, number, entry["chargedMicros"])
                found.total += entry["chargedMicros"]
    return sums


def shares_entries(objects: Iterable[Mapping[str, Any]]) -> bool:
    """Whether in any of the objects subjects are not all told apart."""
    return any(entry["subject"].endswith("/*") for obj in objects for entry in _read_spent(obj))


def _read_spent(obj: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (obj.get("status") or {}).get("spent") or ()


def _find_entry(entries: dict[str, Entry], subject: str) -> str:
    """The name of the subject's entry, which is made if there is room, or the shared one's."""
    if subject in entries:
        return subject
    shared = name_others(subject)
    if len(entries) >= MOST_SUBJECTS - 2:
        subject = shared
    entries.setdefault(subject, {"chargedMicros": 0, **entries.get(shared, {}), "subject": subject})
    return subject


def _absorb(entry: Entry, part: Mapping[str, Any], day: int) -> None:
    """Adds what a subject was charged on a day to its entry among the past days."""
    entry["chargedMicros"] += part.get("chargedMicros", 0)
    if part.get("lastTime"):
        entry["lastTime"] = max(entry.get("lastTime") or "", part["lastTime"])
    if part.get("chargedMicros"):
        days = _parse_days(entry.get("days"))
        _add(days, day, part["chargedMicros"])
        oldest = max(days) - DAYS_SPENT
        entry["days"] = _format_days({n: sum_ for n, sum_ in days.items() if n > oldest})


def _fit(entries: Iterable[Entry], oldest_minute: int) -> None:
    """Makes buckets coarser where there is more of them than an object is to hold."""
    if _measure(entries, "minutes", "hours") <= MOST_BUCKET_BYTES:
        return
    for minute_step, hour_step in _STEPS:
        for entry in entries:
            minutes = _parse(entry.get("minutes"))
            kept = {minute: sum_ for minute, sum_ in minutes.items() if minute >= oldest_minute}
            hours = _coarsen(_parse(entry.get("hours")), hour_step)
            _write(entry, minutes=_coarsen(kept, minute_step), hours=hours)
        # some room, so that it is not to be done again with the next run
        if _measure(entries, "minutes", "hours") <= MOST_BUCKET_BYTES * 3 // 4:
            return


def _fit_days(entries: Iterable[Entry]) -> None:
    """The same for days."""
    if _measure(entries, "days") <= MOST_BUCKET_BYTES:
        return
    days = {e["subject"]: _parse_days(e["days"]) for e in entries if e.get("days")}
    for step in _DAY_STEPS:
        days = {subject: _coarsen(parts, step) for subject, parts in days.items()}
        size = sum(_DAY_BYTES + len(str(sum_)) for p in days.values() for sum_ in p.values())
        if size <= MOST_BUCKET_BYTES * 3 // 4:
            break
    for entry in entries:
        if entry["subject"] in days:
            entry["days"] = _format_days(days[entry["subject"]])


def _measure(entries: Iterable[Entry], *grains: str) -> int:
    return sum(len(entry.get(grain) or "") for entry in entries for grain in grains)


def _coarsen(parts: Mapping[int, int], step: int) -> dict[int, int]:
    """Those of each `step` numbers together, in the newest of them that there is."""
    newest: dict[int, int] = {}
    for number in parts:
        newest[number // step] = max(number, newest.get(number // step, number))
    together: dict[int, int] = {}
    for number, micros in parts.items():
        _add(together, newest[number // step], micros)
    return together


def _add(parts: dict[int, int], number: int, micros: int) -> None:
    parts[number] = parts.get(number, 0) + micros


def _write(entry: Entry, **grains: Mapping[int, int]) -> None:
    for name, parts in grains.items():
        if parts:
            entry[name] = ",".join(f"{number}:{parts[number]}" for number in sorted(parts))
        else:
            entry.pop(name, None)


def _parse(text: str | None) -> dict[int, int]:
    pairs = (part.split(":") for part in (text or "").split(",") if part)
    return {int(number): int(micros) for number, micros in pairs}


def _parse_days(text: str | None) -> dict[int, int]:
    pairs = (part.split(":") for part in (text or "").split(",") if part)
    return {number_day(date.fromisoformat(day)): int(micros) for day, micros in pairs}


def _format_days(days: Mapping[int, int]) -> str:
    epoch = date(1970, 1, 1).toordinal()
    pairs = (
        (date.fromordinal(number + epoch).isoformat(), days[number]) for number in sorted(days)
    )
    return ",".join(f"{day}:{micros}" for day, micros in pairs)


Fields = dict[str, Any]
"""Fields of a status; None is one that is to be absent."""


def tell_balance(funds: Funds | None, charged: int) -> Fields:
    """The money of an account that was charged so much ever."""
    paid = funds.paid_micros + funds.bonus_micros if funds else 0
    return {
        "balanceMicros": paid - charged,
        "balance": to_decimal_text(paid - charged),
        "chargedMicros": charged,
        "charged": to_decimal_text(charged),
    }


def tell_spending(limit: SpendLimit | None, spent: SpentSum, now: datetime) -> Fields:
    """What a key or a pool has spent in its limit's window, else ever, and when that becomes less.

    A window in which nothing was spent becomes no less, so no time is told of it.
    """
    used, reset = spent.total, None
    if limit is not None:
        buckets = spent.freeze()
        used = sum_window(buckets, limit.window, now)
        reset = find_reset(buckets, limit.window, now) if used else None
    return {
        "usedMicros": used,
        "used": to_decimal_text(used),
        "resetTime": format_time(reset.astimezone(UTC)) if reset else None,
    }
