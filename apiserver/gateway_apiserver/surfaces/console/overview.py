"""The account's first page: money, calls, limits, and the latest tasks."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from statistics import median
from typing import Any

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.parts import (
    BEING_READ,
    NOTHING,
    Cell,
    Head,
    Hint,
    Notice,
    Part,
    Plot,
    Region,
    Screen,
    Table,
    Tile,
    Tiles,
    number,
    numeric,
    show_count,
    show_micros,
    show_seconds,
)
from gateway_apiserver.surfaces.console.plots import Bar, draw_bars
from gateway_apiserver.surfaces.console.rows import BatchRow, DayRow
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section
from gateway_apiserver.surfaces.console.tasks import tabulate_tasks
from gateway_apiserver.surfaces.management.usage import UsageReports
from gateway_core.accounts.guardrails import Guardrail
from gateway_core.accounts.records import AccountIndex, KeyRecord, split_rest
from gateway_core.accounts.roles import Act
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.errors import Unavailable
from gateway_core.api.ids import name_to_id
from gateway_core.api.limits import subject_of_guardrail, subject_of_key
from gateway_core.api.words import count_noun
from gateway_core.billing.charges import Amounts
from gateway_core.billing.counters import Budget
from gateway_core.billing.reports import UsageLines, sum_lines
from gateway_core.concurrency import SingleFlight
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.row_index import (
    NEW_SECONDS,
    PATIENCE_SECONDS,
    RowIndex,
    RowPage,
)
from gateway_core.tasks.rows import TaskRow

DAYS = 30
LATEST = 10
"""Tasks of which the page shows the states and durations."""
MOST_LIMITS = 20


class SeatUsage:
    """Reads what a seat may see of the usage: of rows, or of the record where these have no answer.

    A charge is shown once, with the delay of a watch.
    """

    def __init__(
        self,
        usage: UsageReports,
        tasks: RowIndex[TaskRow],
        batches: RowIndex[BatchRow],
        days: RowIndex[DayRow],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usage = usage
        self._tasks = tasks
        self._batches = batches
        self._days = days
        self._clock = clock
        self._flights = SingleFlight[UsageLines]()
        self._put_off: dict[str, float] = {}

    def is_new(self, account: str) -> bool:
        """Return whether a page was answered a moment ago while its usage was being read."""
        return self._clock() - self._put_off.get(account, float("-inf")) < NEW_SECONDS

    async def is_ready(self, seat: Seat) -> bool:
        """Return whether the usage can be read soon; not while the account's tasks are listed."""
        indexes = (self._tasks, self._batches, self._days)
        waits = (index.wait_listed(seat.account.name) for index in indexes)
        return (await asyncio.gather(*waits))[0]

    async def read_soon(self, seat: Seat, first: date, last: date) -> UsageLines | None:
        """Return the same as `read`; None if that takes longer than a page waits.

        Only the first report of an account does: it reads up to 93 days of the object store.
        """
        account = seat.account.name
        run = self._flights.run(
            (account, seat.principal.confined_to, first, last),
            partial(self.read, seat, first, last),
        )
        reading = asyncio.create_task(run)
        # of one that no page waits for any more
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        # a page may have waited for its rows before; one that asks again is shown the usage
        patience = None if self.is_new(account) else PATIENCE_SECONDS / 2
        await asyncio.wait({reading}, timeout=patience)
        if reading.done():
            return reading.result()
        self._put_off = {name: at for name, at in self._put_off.items() if self.is_new(name)}
        self._put_off[account] = self._clock()
        return None

    async def read(self, seat: Seat, first: date, last: date) -> UsageLines:
        """Return the lines of these days. Unavailable."""
        account, caller = seat.account.name, seat.principal
        tasks, batches = self._tasks.find_marked(account), self._batches.find_marked(account)
        days = self._days.find_marked(account)
        if tasks is None or batches is None or days is None:
            return await self._usage.read(caller, first, last)
        usage = [day for row in days if (day := row.known) is not None]
        # the list of days may lack names of runs whose labels the rows of runs do not have yet
        listed = self._days.find_list_version(account)
        is_sure = all(
            index.has_seen(account, listed)
            for index, rows in ((self._tasks, tasks), (self._batches, batches))
            if rows
        )
        if not is_sure or len(usage) < len(days):
            return await self._usage.read(caller, first, last)
        # a run that has lost its charge is in a day that the rows of days may not have seen yet
        seen = self._days.find_version(account)
        runs = (
            *tasks,
            *batches,
            *self._tasks.find_unmarked(account, seen),
            *self._batches.find_unmarked(account, seen),
        )
        owed = [row.owed for row in runs if row.owed is not None]
        epoch = self._days.find_epoch(account), caller.account.id
        return await self._usage.read_known(caller, first, last, usage, owed, epoch)


class OverviewPage:
    """Shows it."""

    def __init__(
        self,
        console: Console,
        keys: AccountIndex[KeyRecord],
        guardrails: AccountIndex[Guardrail],
        tasks: RowIndex[TaskRow],
        usage: SeatUsage,
        limiter: RateLimiter,
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._keys = keys
        self._guardrails = guardrails
        self._tasks = tasks
        self._usage = usage
        self._limiter = limiter
        self._clock = clock
        console.add_section(Section("Overview", ""))
        console.add_page("", self.show, "overview")

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return the page; what cannot be read now is said, and the rest is shown."""
        today = self._clock().astimezone(UTC).date()
        parts: list[Part] = []
        lines: list[Amounts] | None = None
        page: RowPage[TaskRow] = RowPage([])
        try:
            if not await self._usage.is_ready(seat):
                return Screen("Overview", [wait_for_tasks(seat, seat.home)])
            page = await self._tasks.read_page(seat.account.name, limit=LATEST)
        except Unavailable as error:
            parts.append(Notice(error.message, is_problem=True))
        if seat.may(Act.GOVERN):
            try:
                first = min(today - timedelta(DAYS - 1), today.replace(day=1))
                usage = await self._usage.read_soon(seat, first, today)
                if usage is None:
                    return Screen("Overview", [wait_for_tasks(seat, seat.home)])
                lines = usage.sum("day")
            except Unavailable as error:
                parts.append(Notice(error.message, is_problem=True))
        parts.append(Tiles(await self._list_tiles(seat, lines, today, page)))
        if lines is not None:
            parts += _draw(lines, today)
            parts += await self._show_limits(seat)
        latest = tabulate_tasks(seat, page, "Latest tasks", is_titled=True)
        return Screen("Overview", [Region([*parts, latest])])

    async def _list_tiles(
        self, seat: Seat, lines: list[Amounts] | None, today: date, page: RowPage[TaskRow]
    ) -> list[Tile]:
        tiles = []
        if lines is not None:
            own = " by your keys" if seat.principal.confined_to else ""
            spent = _sum(lines, today, today), _sum(lines, today.replace(day=1), today)
            for word, sums in zip(("today", "this month"), spent, strict=True):
                calls = f"{count_noun(sums.requests, 'call')}, {show_count(sums.failed)} failed"
                tiles.append(Tile(f"Spent {word}{own}", show_micros(sums.micros), calls))
        try:
            spending = await self._limiter.read_spending(seat.account.name)
        except Unavailable:
            tiles.append(Tile("Balance", "not known now"))
        else:
            rest = sum(split_rest(seat.account, spending)) - spending.held
            share = spending.charged / seat.account.funds if seat.account.funds else None
            hint = f"{show_micros(spending.held)} more is reserved for work under way"
            if seat.account.unlimited:
                hint, share = "This account needs no balance", None
            tiles.append(Tile("Balance", show_micros(rest), hint, share))
        seconds = [row.seconds for row in page.rows if row.seconds is not None]
        count = (
            f"Median of the latest {len(seconds)} that ended" if seconds else "No task has ended"
        )
        usual = show_seconds(median(seconds) if seconds else None)
        tiles.append(Tile("Time of a task", usual, count))
        rate = show_count(seat.account.requests_per_minute)
        tiles.append(Tile("Calls a minute", rate, "The limit of paid calls, all keys together"))
        return tiles

    async def _show_limits(self, seat: Seat) -> list[Part]:
        account, user = seat.account.name, seat.principal.confined_to
        limited: list[tuple[str, KeyRecord | Guardrail, Budget]] = []
        kinds: list[tuple[str, AccountIndex[Any], Callable[[str], str]]] = [
            ("keys", self._keys, subject_of_key)
        ]
        if seat.may(Act.GOVERN, confined=False):
            kinds.append(("guardrails", self._guardrails, subject_of_guardrail))
        for noun, table, find_subject in kinds:
            for each in table.find(account):
                is_own = user in (None, getattr(each, "creator", None))
                is_revoked = getattr(each, "revoked", False)
                if is_own and not is_revoked and each.rules.limit is not None:
                    budget = Budget(find_subject(each.name), each.rules.limit, each.rules.window)
                    limited.append((noun, each, budget))
        budgets = [budget for _, _, budget in limited]
        states = await self._limiter.read_budgets(account, budgets) if budgets else []
        used: Sequence[int | None] = [None] * len(limited)
        if states is not None:
            used = [state.used for state in states]
        rows = [
            _show_limit(seat, noun, each, budget, spent)
            for (noun, each, budget), spent in zip(limited, used, strict=True)
        ]
        # the limits used most first
        rows.sort(key=lambda row: row[2].share or 0.0, reverse=True)
        heads = (Head("Kind"), Head("Name"), numeric("Used"), numeric("Limit"), Head("Window"))
        empty = "No key of yours has a limit." if user else "No key or guardrail has a limit."
        return [Table("Limits", heads, rows[:MOST_LIMITS], empty, is_titled=True)]


def wait_for_tasks(seat: Seat, here: str) -> Region:
    """In the place of a page's parts, until the account's tasks, or its usage, are read."""
    return Region([Hint(BEING_READ)], here, f"{seat.home}/events/tasks")


def _show_limit(
    seat: Seat, noun: str, each: KeyRecord | Guardrail, budget: Budget, used: int | None
) -> list[Cell]:
    limit = budget.limit or 0
    return [
        Cell("Key" if noun == "keys" else "Guardrail"),
        Cell(each.display_name, href=f"{seat.home}/{noun}/{name_to_id(each.name)}"),
        number(show_micros(used), used / limit if limit and used is not None else None),
        number(show_micros(limit)),
        Cell(budget.window or NOTHING),
    ]


def _sum(lines: Sequence[Amounts], first: date, last: date) -> Amounts:
    days = first.isoformat(), last.isoformat()
    (sums,) = sum_lines([line for line in lines if days[0] <= (line.day or "") <= days[1]], [])
    return sums


def _draw(lines: Sequence[Amounts], today: date) -> list[Part]:
    days = [(today - timedelta(back)).isoformat() for back in range(DAYS - 1, -1, -1)]
    return draw_days(lines, days)


def draw_days(lines: Sequence[Amounts], days: Sequence[str]) -> list[Part]:
    """Plots of spending and calls of these days."""
    by_day = {line.day: line for line in sum_lines(lines, ["day"])}
    found = [by_day.get(day, Amounts(day=day)) for day in days]
    money = [Bar(line.day or "", line.micros) for line in found]
    calls = [Bar(line.day or "", line.requests, line.failed) for line in found]
    spent = [[Cell(line.day or ""), number(show_micros(line.micros))] for line in found]
    counts = [
        [
            Cell(line.day or ""),
            number(show_count(line.requests)),
            number(show_count(line.failed)),
        ]
        for line in found
    ]
    return [
        _plot("Spending by day", "Spending by day", money, show_micros, ["Spent"], spent),
        _plot(
            "Calls by day",
            "Calls by day, failed in red",
            calls,
            show_count,
            ["Calls", "Failed"],
            counts,
        ),
    ]


def _plot(
    title: str,
    label: str,
    bars: Sequence[Bar],
    show: Callable[[int], str],
    figures: Sequence[str],
    rows: Sequence[Sequence[Cell]],
) -> Plot:
    """Return a plot of days, and its figures as a table, the newest day first."""
    heads = (Head("Day"), *map(numeric, figures))
    table = Table(title, heads, rows[::-1], "Nothing was charged.")
    return Plot(label, draw_bars(label, bars, show), table)
