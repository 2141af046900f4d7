"""Charges of each key and guardrail of an account, in the buckets that windows are made of.

These are the `spent` entries of usage objects, of a day and of all days before. An object must stay
well below etcd's limit (1.5 MB), so the buckets are bounded. Coarser buckets and shared entries
always err on the side of counting more, never less, than was spent:

- minutes are kept a little longer than the hour of the only window that counts minutes;
- where the text of all buckets is too long, neighbours are merged into the newest of them, so that
  a charge counts longer than it should, by the width of the merged bucket;
- subjects beyond `MOST_SUBJECTS` share an entry, `key/*` or `guardrail/*`, and a subject without an
  entry of its own counts as having spent all of it. Entries are never removed, and one that is
  added beside a shared one starts with its sums.
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
from gateway_core.billing.charges import Charge
from gateway_core.billing.windows import Buckets, find_reset, number_day, sum_window

MINUTES_SPENT = 75
"""An hour, and a margin for the clocks of the processes that aggregate."""
DAYS_SPENT = 40
"""A month, and the days that have objects of their own."""
MOST_BUCKET_BYTES = 384 * 1024
"""Text of all minutes and hours of one object, or of all its days."""
_STEPS = ((1, 1), (5, 1), (15, 1), (30, 1), (60, 1), (60, 3), (60, 6), (120, 24))
"""Widths of minutes and hours, tried in this order."""
_DAY_STEPS = (2, 3, 5, 10, 20, DAYS_SPENT)
_DAY_BYTES = len("2026-01-01:,")

Entry = dict[str, Any]


@dataclass(slots=True)
class SpentSum:
    """Charges of one subject, added up from several objects.

    `last` is when it was last used, to the minute; empty where unknown.
    """

    minutes: dict[int, int] = field(default_factory=dict)
    hours: dict[int, int] = field(default_factory=dict)
    days: dict[int, int] = field(default_factory=dict)
    total: int = 0
    last: str = ""

    def add(self, micros: int, day: int, minute: int) -> None:
        """Add one charge; `day` is numbered from the epoch, `minute` is of that day."""
        _add(self.minutes, day * 1440 + minute, micros)
        _add(self.hours, day * 24 + minute // 60, micros)
        _add(self.days, day, micros)
        self.total += micros

    def freeze(self) -> Buckets:
        """Return the buckets that windows are counted from."""
        return Buckets(self.minutes, self.hours, self.days, self.total)


def name_others(subject: str) -> str:
    """Return the shared entry of a subject without an entry of its own."""
    return f"{subject.partition('/')[0]}/*"


def add_spending(
    spent: Iterable[Mapping[str, Any]] | None, runs: Iterable[Charge], oldest_minute: int
) -> list[Entry]:
    """Return the `spent` of a day with `runs` of that day.

    Minutes before `oldest_minute` are dropped.
    """
    entries: dict[str, Entry] = {entry["subject"]: dict(entry) for entry in spent or ()}
    touched: dict[str, list[Charge]] = {}
    for run in runs:
        # once in an entry that several of its guardrails share
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
        # only where the clock of an owner is wrong, else old minutes have been dropped
        if len(minutes) > 2 * MINUTES_SPENT:
            minutes = _coarsen(minutes, 60)
        _write(entry, minutes=minutes, hours=hours)
    _fit(entries.values(), oldest_minute)
    return list(entries.values())


def roll_up_spending(
    before: Iterable[Mapping[str, Any]] | None, spent: Iterable[Mapping[str, Any]] | None, day: str
) -> list[Entry]:
    """Return the `spent` of past days with that of a closed day: sums of whole days, and totals.

    Any subject without an entry in that day may have spent what its shared entry has.
    """
    entries: dict[str, Entry] = {entry["subject"]: dict(entry) for entry in before or ()}
    number = number_day(date.fromisoformat(day))
    parts = {part["subject"]: part for part in spent or ()}
    for subject, part in parts.items():
        if not subject.endswith("/*"):
            _roll_up(entries[_find_entry(entries, subject)], part, number)
    # after the entries of their own, which may have been created by the first loop
    for shared, part in parts.items():
        if shared.endswith("/*"):
            _find_entry(entries, shared)
            for subject, entry in entries.items():
                if (subject == shared or subject not in parts) and name_others(subject) == shared:
                    _roll_up(entry, part, number)
    _fit_days(entries.values())
    return list(entries.values())


def sum_spending(
    objects: Sequence[Mapping[str, Any]], rolled_up: Iterable[str], names: Iterable[str] = ()
) -> dict[str, SpentSum]:
    """Charges of each subject in the usage objects of one account.

    `rolled_up` are uids of days that are in the sum of past days already. `names` are subjects
    that may have no entry of their own (`shares_entries`). Minutes of the newest two days only.
    """
    tables = [{entry["subject"]: entry for entry in _read_spent(obj)} for obj in objects]
    subjects = {subject for table in tables for subject in table} | set(names)
    subjects = {subject for subject in subjects if not subject.endswith("/*")}
    days = sorted(obj["spec"]["day"] for obj in objects if obj["spec"].get("day"))
    sums = {subject: SpentSum() for subject in subjects}
    in_past_days = set(rolled_up)
    for obj, table in zip(objects, tables, strict=True):
        day = obj["spec"].get("day")
        in_sum = obj["metadata"]["uid"] in in_past_days
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
    """Return whether any of the objects has a shared entry."""
    return any(entry["subject"].endswith("/*") for obj in objects for entry in _read_spent(obj))


def _read_spent(obj: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (obj.get("status") or {}).get("spent") or ()


def _find_entry(entries: dict[str, Entry], subject: str) -> str:
    """Return the subject's entry, added if there is room, or the shared one; its name."""
    if subject in entries:
        return subject
    shared = name_others(subject)
    # two places are reserved for `key/*` and `guardrail/*`
    if len(entries) >= MOST_SUBJECTS - 2:
        subject = shared
    entries.setdefault(subject, {"chargedMicros": 0, **entries.get(shared, {}), "subject": subject})
    return subject


def _roll_up(entry: Entry, part: Mapping[str, Any], day: int) -> None:
    """Add a subject's charges of one day to its entry in the sum of past days."""
    entry["chargedMicros"] += part.get("chargedMicros", 0)
    if part.get("lastTime"):
        entry["lastTime"] = max(entry.get("lastTime") or "", part["lastTime"])
    if part.get("chargedMicros"):
        days = _parse_days(entry.get("days"))
        _add(days, day, part["chargedMicros"])
        oldest = max(days) - DAYS_SPENT
        entry["days"] = _format_days({n: sum_ for n, sum_ in days.items() if n > oldest})


def _fit(entries: Iterable[Entry], oldest_minute: int) -> None:
    """Merge buckets where there are more than an object may hold."""
    if _measure(entries, "minutes", "hours") <= MOST_BUCKET_BYTES:
        return
    for minute_step, hour_step in _STEPS:
        for entry in entries:
            minutes = _parse(entry.get("minutes"))
            kept = {minute: sum_ for minute, sum_ in minutes.items() if minute >= oldest_minute}
            hours = _coarsen(_parse(entry.get("hours")), hour_step)
            _write(entry, minutes=_coarsen(kept, minute_step), hours=hours)
        # leaves room, so that not every further run merges again
        if _measure(entries, "minutes", "hours") <= MOST_BUCKET_BYTES * 3 // 4:
            return


def _fit_days(entries: Iterable[Entry]) -> None:
    """Merge days where there are more than an object may hold."""
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
    """Buckets merged by `step` numbers, each into the newest number that has a charge."""
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


def render_balance(funds: Funds | None, charged: int) -> dict[str, Any]:
    """Return the status fields of an account's money; `charged` is its total."""
    paid = funds.paid_micros + funds.bonus_micros if funds else 0
    return {
        "balanceMicros": paid - charged,
        "balance": to_decimal_text(paid - charged),
        "chargedMicros": charged,
        "charged": to_decimal_text(charged),
    }


def render_spending(limit: SpendLimit | None, spent: SpentSum, now: datetime) -> dict[str, Any]:
    """Return the status fields of a key's or guardrail's spending in its window, or in total.

    None is a field to remove: a window without charges has no reset.
    """
    used, reset = spent.total, None
    if limit is not None:
        buckets = spent.freeze()
        used = sum_window(buckets, limit.window, now)
        reset = find_reset(buckets, limit.window, now) if used else None
    return {
        "usedMicros": used,
        "used": to_decimal_text(used),
        "limit": None if limit is None else to_decimal_text(limit.micros),
        "resetTime": format_time(reset.astimezone(UTC)) if reset else None,
    }
