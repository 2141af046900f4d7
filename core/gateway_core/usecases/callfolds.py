"""Folding the usage journal into the accounts' days, each object once whoever does it.

A day's object tells how far each process's journal is in it, and changes with the sums in one
compare-and-set. Folds go in the order of the journal, so an object counts in a day if and only if
its number is above the day's mark of the process, and nothing has to be named. Where a day has no
mark of the process, one may have been dropped, so the object is looked for after the day was read:
a mark is dropped only once all that it stands for has been removed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway_core.contract.usage import MOST_JOURNALS, GatewayUsage, usage_name
from gateway_core.domain.journal import JournalObject
from gateway_core.domain.usage import Charge, add_calls, drop_journals, list_journals
from gateway_core.ports.records import Missing, Outdated, RecordOutcomeUnknown, Records
from gateway_core.usecases.backlog import Backlog
from gateway_core.usecases.usage import FoldDeferred, open_usage

_ATTEMPTS = 8

Entry = tuple[JournalObject, list[Charge]]


@dataclass(slots=True)
class DayPart:
    """What journals have of one account and day: objects and their charges, in order by process."""

    account: str
    day: str
    by_process: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))


def divide_objects(objects: Sequence[JournalObject]) -> list[DayPart]:
    """The objects, which are in order by process, by account and day."""
    parts: dict[tuple[str, str], DayPart] = {}
    for obj in objects:
        charges: dict[tuple[str, str], list[Charge]] = {}
        for charge in (record.to_charge() for record in obj.records):
            charges.setdefault((charge.account, charge.day), []).append(charge)
        for name, some in charges.items():
            part = parts.setdefault(name, DayPart(*name))
            part.by_process[obj.process].append((obj, some))
    return list(parts.values())


async def fold_calls(
    records: Records,
    backlog: Backlog,
    part: DayPart,
    is_ended: Callable[[str], bool],
    now: datetime,
) -> tuple[int, frozenset[str]]:
    """Adds what is not in the day yet: how many calls, and the processes that have to wait.

    These are those for whose marks there is no room. `is_ended` tells of a process whether nothing
    of its journal has been left for long: its mark may go then. FoldDeferred; what the ports raise.
    """
    for _ in range(_ATTEMPTS):
        usage = await open_usage(records, part.account, part.day)
        status = usage.get("status") or {}
        if status.get("closed"):
            raise FoldDeferred(f"{usage_name(part.account, part.day)} is closed and about to go")
        new = await _select_new(backlog, part, list_journals(status))
        status = _make_room(status, new, is_ended)
        left = frozenset(_find_left(status, new))
        reached = {process: entries[-1][0].sequence for process, entries in new.items()}
        reached = {process: n for process, n in reached.items() if process not in left}
        if not reached:
            return 0, left
        charges = [c for process in reached for _, some in new[process] for c in some]
        change = add_calls(status, part.day, charges, reached, now)
        try:
            await records.patch_status(GatewayUsage.plural, usage, change)
        except (Outdated, Missing, RecordOutcomeUnknown):
            continue
        return len(charges), left
    raise FoldDeferred(f"{usage_name(part.account, part.day)} is written by others all the time")


async def _select_new(
    backlog: Backlog, part: DayPart, marks: Mapping[str, int]
) -> dict[str, list[Entry]]:
    """By process what is not in the sums; processes that have nothing new are left out."""
    new: dict[str, list[Entry]] = {}
    for process, entries in part.by_process.items():
        if process in marks:
            new[process] = [entry for entry in entries if entry[0].sequence > marks[process]]
        else:
            there = await asyncio.gather(*(backlog.is_there(obj) for obj, _ in entries))
            new[process] = [
                entry for entry, is_there in zip(entries, there, strict=True) if is_there
            ]
    return {process: entries for process, entries in new.items() if entries}


def _make_room(
    status: Mapping[str, Any], wanted: Iterable[str], is_ended: Callable[[str], bool]
) -> Mapping[str, Any]:
    marks = list_journals(status)
    if len({*marks, *wanted}) <= MOST_JOURNALS:
        return status
    return drop_journals(status, {p for p in marks if p not in wanted and is_ended(p)})


def _find_left(status: Mapping[str, Any], wanted: Iterable[str]) -> list[str]:
    """Those of the processes that have no mark, and for which there is no room."""
    marks = list_journals(status)
    new = [process for process in wanted if process not in marks]
    return new[max(0, MOST_JOURNALS - len(marks)) :]
