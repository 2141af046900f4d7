"""Folding the usage journal into the accounts' days, each object once whoever does it.

A day's object tells how far each process's journal is in it, and changes with the sums in one
compare-and-set. Folds go in the order of the journal, so an object counts in a day if and only if
its number is above the day's mark of the process, and nothing has to be named. Where a day has no
mark of the process, one may have been dropped, so the object is looked for after the day was read:
a mark is dropped only once all that it stands for has been removed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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


@dataclass(slots=True)
class DayPart:
    """What journals have of one account and day: objects and their charges, in order by process."""

    account: str
    day: str
    by_process: dict[str, list[tuple[JournalObject, list[Charge]]]] = field(
        default_factory=lambda: defaultdict(list)
    )


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
) -> int:
    """Adds what is not in the day yet; how many calls. FoldDeferred; what the ports raise.

    `is_ended` tells of a process whether nothing of its journal has been left for long: its mark
    may go where there is no room for others.
    """
    for _ in range(_ATTEMPTS):
        usage = await open_usage(records, part.account, part.day)
        status = usage.get("status") or {}
        if status.get("closed"):
            raise FoldDeferred(f"{usage_name(part.account, part.day)} is closed and about to go")
        charges, reached = await _select_new(backlog, part, list_journals(status))
        if not reached:
            return 0
        status = _make_room(status, reached, is_ended)
        change = add_calls(status, part.day, charges, reached, now)
        try:
            await records.patch_status(GatewayUsage.plural, usage, change)
        except (Outdated, Missing, RecordOutcomeUnknown):
            continue
        return len(charges)
    raise FoldDeferred(f"{usage_name(part.account, part.day)} is written by others all the time")


async def _select_new(
    backlog: Backlog, part: DayPart, marks: Mapping[str, int]
) -> tuple[list[Charge], dict[str, int]]:
    """The charges that are not in the sums, and how far each journal is with them."""
    charges: list[Charge] = []
    reached: dict[str, int] = {}
    for process, entries in part.by_process.items():
        if process in marks:
            new = [entry for entry in entries if entry[0].sequence > marks[process]]
        else:
            there = await asyncio.gather(*(backlog.is_there(obj) for obj, _ in entries))
            new = [entry for entry, is_there in zip(entries, there, strict=True) if is_there]
        for obj, some in new:
            reached[process] = obj.sequence
            charges += some
    return charges, reached


def _make_room(
    status: Mapping[str, Any], reached: Mapping[str, int], is_ended: Callable[[str], bool]
) -> Mapping[str, Any]:
    marks = list_journals(status)
    if len({*marks, *reached}) <= MOST_JOURNALS:
        return status
    left = drop_journals(status, {p for p in marks if p not in reached and is_ended(p)})
    if len({*list_journals(left), *reached}) > MOST_JOURNALS:
        raise FoldDeferred("too many processes have written of one account and day")
    return left
