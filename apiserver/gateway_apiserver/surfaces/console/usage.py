"""What was charged by day, key and model, as plots, tables and CSV; and the balance."""

import asyncio
import csv
import io
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from functools import partial

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.actors import Actors
from gateway_apiserver.surfaces.console.choices import SESSION_PREFIX, name_key
from gateway_apiserver.surfaces.console.overview import SeatUsage, draw_days, wait_for_tasks
from gateway_apiserver.surfaces.console.parts import (
    NOTHING,
    Cell,
    Facts,
    Field,
    Form,
    Head,
    Hint,
    Links,
    Part,
    Region,
    Screen,
    Table,
    locate,
    number,
    numeric,
    show_count,
    show_micros,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, read_query
from gateway_apiserver.surfaces.management.usage import UsageQuery, UsageReports
from gateway_apiserver.surfaces.validation import validate
from gateway_core.accounts.records import AccountIndex, KeyRecord, UserRecord, split_rest
from gateway_core.accounts.roles import Act
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.ids import name_to_id
from gateway_core.api.money import to_decimal_text
from gateway_core.billing.charges import Amounts
from gateway_core.billing.reports import sum_lines
from gateway_core.kube.informer import Cache
from gateway_web.responses import NO_SNIFF, NO_STORE, Response

MOST_ROWS = 100
"""The page lists the keys and models with the highest cost; the CSV lists all of them."""
_COLUMNS = ("day", "key_id", "model", "operation", "requests", "failed")
_TOKENS = ("input_tokens", "output_tokens")


class UsagePages:
    """The report and its CSV."""

    def __init__(
        self,
        console: Console,
        keys: AccountIndex[KeyRecord],
        users: Cache[UserRecord],
        usage: UsageReports,
        reader: SeatUsage,
        limiter: RateLimiter,
    ) -> None:
        self._keys = keys
        self._actors = Actors(users)
        self._reader = reader
        self._usage = usage
        self._limiter = limiter
        console.add_section(Section("Usage", "/usage", Act.GOVERN))
        console.add_page("/usage", self.show, "usage")
        console.add_page("/usage/csv", self.download, "usage_csv")

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Plots and sums of the days that were chosen."""
        first, last = self._choose_days(call, seat)
        path = f"{seat.home}/usage"
        chosen = {"start": first.isoformat(), "end": last.isoformat()}
        search = Form(
            path,
            "Show",
            (
                Field("start", "From", "date", chosen["start"]),
                Field("end", "To", "date", chosen["end"]),
            ),
            filters=True,
        )
        if not await self._reader.is_ready(seat):
            return Screen("Usage", [search, wait_for_tasks(seat, locate(path, **chosen))])
        lines = await self._reader.read_soon(seat, first, last)
        if lines is None:
            return Screen("Usage", [search, wait_for_tasks(seat, locate(path, **chosen))])
        parts: list[Part] = [Links([("Download as CSV", locate(f"{path}/csv", **chosen))])]
        days = [(first + timedelta(day)).isoformat() for day in range((last - first).days + 1)]
        parts += draw_days(lines.sum("day"), days)
        parts.append(_tabulate("By model", "Model", lines.sum("model"), _name_model))
        name = partial(self._name_key, seat.account.name)
        parts.append(_tabulate("By key", "Key", lines.sum("key"), name))
        if seat.may(Act.GOVERN, confined=False):
            parts.append(await self._show_balance(seat))
        return Screen("Usage", [search, Region(parts)])

    async def download(self, call: Call, seat: Seat) -> Response:
        """Return all lines by day, key, model and operation."""
        first, last = self._choose_days(call, seat)
        lines = await self._reader.read(seat, first, last)
        by_day: dict[str, list[Amounts]] = {}
        for line in lines:
            by_day.setdefault(line.day or "", []).append(line)
        parts = [write_csv([], with_head=True)]
        for day in sorted(by_day):
            parts.append(write_csv(sum_lines(by_day[day], ["day", "key", "model", "operation"])))
            # all days at once would keep other requests waiting for half a second
            await asyncio.sleep(0)
        name = f"usage-{seat.account.name}-{first}-{last}.csv"
        headers = (
            (b"content-type", b"text/csv; charset=utf-8"),
            (b"content-disposition", f'attachment; filename="{name}"'.encode()),
            NO_SNIFF,
            NO_STORE,
        )
        return Response(200, "".join(parts).encode(), headers)

    def _choose_days(self, call: Call, seat: Seat) -> tuple[date, date]:
        seat.require(Act.GOVERN)
        query = read_query(call)
        given = {name: query[name] for name in ("start", "end") if query.get(name)}
        return self._usage.choose_days(validate(UsageQuery, given))

    def _name_key(self, account: str, line: Amounts) -> str:
        """Return the name of a line's key; the id of one that is there no more."""
        name = line.key_name
        if not name:
            return NOTHING
        shown = name_key(self._keys, account, name)
        if name.startswith(SESSION_PREFIX):
            user = self._actors.show(f"user/{name.removeprefix(SESSION_PREFIX)}")
            return f"{shown} ({user.text})"
        return shown

    async def _show_balance(self, seat: Seat) -> Facts:
        account = seat.account
        spending = await self._limiter.read_spending(account.name)
        paid_left, bonus_left = split_rest(account, spending)
        items = [
            ("Balance", number(show_micros(paid_left + bonus_left - spending.held))),
            ("Reserved", number(show_micros(spending.held))),
            ("Paid balance", number(show_micros(paid_left))),
            ("Bonus balance", number(show_micros(bonus_left))),
            ("Spent today", number(show_micros(spending.charged_today))),
            ("Total spent", number(show_micros(spending.charged))),
            ("Total paid in", number(show_micros(account.paid_micros))),
            ("Total bonus", number(show_micros(account.bonus_micros))),
            ("Unlimited", Cell("yes" if account.unlimited else "no")),
        ]
        return Facts(items, "Balance and funds")


def write_csv(lines: Sequence[Amounts], *, with_head: bool = False) -> str:
    """Return the lines as CSV (RFC 4180). Names cannot be formulas of a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out)
    if with_head:
        writer.writerow((*_COLUMNS, *_TOKENS, "cost_usd"))
    for line in lines:
        key = name_to_id(line.key_name) if line.key_name else ""
        names = (line.day or "", key, line.model_id or "", line.operation or "")
        writer.writerow(
            (
                *map(_quote, names),
                line.requests,
                line.failed,
                line.input_tokens,
                line.output_tokens,
                to_decimal_text(line.micros),
            )
        )
    return out.getvalue()


def _quote(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _tabulate(
    title: str, noun: str, lines: Sequence[Amounts], name: Callable[[Amounts], str]
) -> Table | Hint:
    ordered = sorted(lines, key=lambda line: line.micros, reverse=True)
    most = ordered[0].micros if ordered else 0
    heads = (
        Head(noun),
        numeric("Spent"),
        numeric("Calls"),
        numeric("Failed"),
        numeric("Input tokens"),
        numeric("Output tokens"),
    )
    rows = [
        [
            Cell(name(line)),
            number(show_micros(line.micros), line.micros / most if most else None),
            number(show_count(line.requests)),
            number(show_count(line.failed)),
            number(show_count(line.input_tokens)),
            number(show_count(line.output_tokens)),
        ]
        for line in ordered[:MOST_ROWS]
    ]
    return Table(title, heads, rows, "Nothing was charged in these days.", is_titled=True)


def _name_model(line: Amounts) -> str:
    return line.model_id or NOTHING
