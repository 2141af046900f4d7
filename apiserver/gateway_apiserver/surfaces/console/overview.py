"""The account's first page: money, calls, limits, and the latest tasks."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from statistics import median
from typing import Any

from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_apiserver.surfaces.console.parts import (
    NOTHING,
    Cell,
    Head,
    Notice,
    Part,
    Plot,
    Screen,
    Table,
    Tile,
    Tiles,
    number,
    numeric,
    show_cents,
    show_count,
    show_micros,
    show_seconds,
)
from gateway_apiserver.surfaces.console.plots import Bar, draw_bars
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section
from gateway_apiserver.surfaces.console.tasks import TaskLists, read_seconds, tabulate_tasks
from gateway_apiserver.surfaces.management import ROOT as MANAGEMENT
from gateway_apiserver.surfaces.management.usage import UsageRoutes
from gateway_core.accounts.records import work_out_balance
from gateway_core.accounts.roles import Act
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.errors import Unavailable
from gateway_core.api.money import MICROS_PER_CENT, MICROS_PER_DOLLAR
from gateway_core.billing.charges import Amounts
from gateway_core.billing.reports import sum_lines
from gateway_core.kube.clock import CLOCK

DAYS = 30
LATEST = 10
"""Tasks of which the page shows the states and durations: each is one read."""
MOST_LIMITS = 20


class OverviewPage:
    """Shows it."""

    def __init__(
        self,
        console: Console,
        api: InnerApi,
        tasks: TaskLists,
        usage: UsageRoutes,
        limiter: RateLimiter,
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._api = api
        self._tasks = tasks
        self._usage = usage
        self._limiter = limiter
        self._clock = clock
        console.add_section(Section("Overview", ""))
        console.add_page("", self.show, "overview")

    async def show(self, call: Call, seat: Seat) -> Screen:
        """The page; what cannot be read now is said, and the rest is shown."""
        today = self._clock().astimezone(UTC).date()
        parts: list[Part] = []
        lines: list[Amounts] | None = None
        if seat.may(Act.GOVERN):
            try:
                first = min(today - timedelta(DAYS - 1), today.replace(day=1))
                lines = await self._usage.read(seat.principal, first, today)
            except Unavailable as error:
                parts.append(Notice(error.message, is_problem=True))
        page = await self._tasks.read_page(seat.account.name, limit=LATEST)
        parts.append(Tiles(await self._list_tiles(seat, lines, today, page.objects)))
        if lines is not None:
            parts += _draw(lines, today)
            parts += await self._show_limits(call, seat)
        latest = tabulate_tasks(seat, page.objects, "Latest tasks", is_titled=True)
        return Screen("Overview", [*parts, latest])

    async def _list_tiles(
        self, seat: Seat, lines: list[Amounts] | None, today: date, tasks: Sequence[Any]
    ) -> list[Tile]:
        tiles = []
        if lines is not None:
            own = " by your keys" if seat.principal.confined_to else ""
            spent = _sum(lines, today, today), _sum(lines, today.replace(day=1), today)
            for word, sums in zip(("today", "this month"), spent, strict=True):
                calls = f"{show_count(sums.requests)} calls, {show_count(sums.failed)} failed"
                tiles.append(Tile(f"Spent {word}{own}", _show_sum(sums.micros), calls))
        try:
            spending = await self._limiter.read_spending(seat.account.name)
        except Unavailable:
            tiles.append(Tile("Balance", "not known now"))
        else:
            balance = work_out_balance(seat.account, spending)
            share = spending.charged / seat.account.funds if seat.account.funds else None
            hint = f"{show_micros(spending.held)} of it reserved for work under way"
            if seat.account.unlimited:
                hint, share = "This account needs no balance", None
            tiles.append(Tile("Balance", show_cents(balance.balance_cents), hint, share))
        seconds = [taken for task in tasks if (taken := read_seconds(task)) is not None]
        count = (
            f"Median of the latest {len(seconds)} that ended" if seconds else "No task has ended"
        )
        usual = show_seconds(median(seconds) if seconds else None)
        tiles.append(Tile("Time of a task", usual, count))
        rate = show_count(seat.account.requests_per_minute)
        tiles.append(Tile("Calls a minute", rate, "The most paid calls of all keys together"))
        return tiles

    async def _show_limits(self, call: Call, seat: Seat) -> list[Part]:
        rows = []
        for noun, title, confined in (("keys", "Key", True), ("guardrails", "Guardrail", False)):
            if not seat.may(Act.GOVERN, confined=confined):
                continue
            found = await self._api.read(call, seat, f"{MANAGEMENT}/{noun}", limit=MOST_LIMITS)
            for each in found["data"]:
                if each["limit_cents"] is None or each.get("status") == "revoked":
                    continue
                link = f"{seat.home}/{noun}/{each['id']}"
                rows.append([Cell(title), Cell(each["name"], href=link), *show_budget(each)])
        heads = (Head("Kind"), Head("Name"), numeric("Used"), numeric("Limit"), Head("Window"))
        empty = "No key or guardrail has a limit."
        return [Table("Limits", heads, rows, empty, is_titled=True)]


def show_budget(each: Any) -> list[Cell]:
    """Used, limit and window of a key or guardrail."""
    limit, used = each["limit_cents"], each["used_cents"]
    share = used / limit if limit and used is not None else None
    return [
        number(show_cents(used), share),
        number(show_cents(limit)),
        Cell(each["limit_window"] or NOTHING),
    ]


def _show_sum(micros: int) -> str:
    """Dollars, from one on to the cent, to fit a tile; the usage page has all digits."""
    if micros < MICROS_PER_DOLLAR:
        return show_micros(micros)
    return show_cents(round(micros / MICROS_PER_CENT))


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
    figures = (Head("Day"), numeric("Spent"), numeric("Calls"), numeric("Failed"))
    rows = [
        [
            Cell(line.day or ""),
            number(show_micros(line.micros)),
            number(show_count(line.requests)),
            number(show_count(line.failed)),
        ]
        for line in reversed(found)
    ]
    table = Table("Spending and calls by day", figures, rows, "Nothing was charged.")
    return [
        Plot("Spending by day", draw_bars("Spending by day", money, show_micros), table),
        Plot("Calls by day", draw_bars("Calls by day, failed in red", calls, show_count), table),
    ]
