"""What the pages of keys and guardrails share: their limits, lists and forms.

Lists show what informers have, with the delay of a watch. All else is done by the operations of
Platform Management (`surfaces/management`).
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Protocol, TypeVar, get_args

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.inner import InnerApi, Wrong
from gateway_apiserver.surfaces.console.parts import (
    NOTHING,
    Cell,
    Field,
    Form,
    Notice,
    Part,
    Screen,
    number,
    show_cents,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, Values
from gateway_apiserver.surfaces.management import ROOT as MANAGEMENT
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_core.accounts.guardrails import Rules, Shown
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.limits import Window
from gateway_core.api.money import floor_cents
from gateway_core.billing.counters import Budget
from gateway_core.kube.lists import take_page
from gateway_core.kube.row_index import read_cursor, write_cursor
from gateway_core.providers.offers import Offers
from gateway_web.responses import Response

PER_PAGE = 20

_WINDOW_TEXTS = {
    "1h": "1h: the last hour",
    "1d": "1d: the last 24 hours",
    "7d": "7d: the last 7 days",
    "daily": "daily: from 00:00 UTC",
    "weekly": "weekly: from Monday, 00:00 UTC",
    "monthly": "monthly: from the 1st, 00:00 UTC",
    "lifetime": "lifetime: never ends",
}
_WINDOWS = [
    ("", "No limit"),
    *((window, _WINDOW_TEXTS.get(window, window)) for window in get_args(Window)),
]
_LISTS = ("allowed_models", "allowed_providers", "denied_models", "denied_providers")


_LABELS = {name: name.replace("_", " ").capitalize() for name in _LISTS}


class GovernedPages(ABC):
    """Pages of keys, or of guardrails: `noun` is the one in their addresses.

    `words` name the forms of one of them and the methods that take these.
    """

    def __init__(
        self,
        console: Console,
        api: InnerApi,
        limiter: RateLimiter,
        offers: Offers,
        noun: str,
        section: Section,
        *words: str,
    ) -> None:
        self._api = api
        self._limiter = limiter
        self._offers = offers
        self._noun = noun
        console.add_section(section)
        console.add_page(f"/{noun}", self.show_list, noun)
        console.add_form(f"/{noun}", self.create, f"{noun}_create", self.show_list)
        one = f"/{noun}/{{wire_id}}"
        console.add_page(one, self.show, f"{noun}_one")
        for word in words:
            console.add_form(f"{one}/{word}", getattr(self, word), f"{noun}_{word}", self.show)

    @abstractmethod
    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """Return a page of them, and the form for a new one."""

    @abstractmethod
    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return one of them, and what may be done with it."""

    @abstractmethod
    async def create(self, call: Call, seat: Seat, values: Values) -> Screen | Response:
        """Make one."""

    @abstractmethod
    def read(self, values: Values) -> dict[str, Any]:
        """Return the body of the operations for a form."""

    async def change(self, call: Call, seat: Seat, values: Values) -> Response:
        """Change what the form shows of it."""
        await self._api.write(call, seat, "PATCH", self.operation(call), self.read(values))
        return redirect(f"{self.locate(call, seat)}?done=changed")

    def warn_of_names(self, each: Any) -> list[Part]:
        """Return a notice of names in its lists that nothing has, in the words of the page."""
        lists = {_LABELS[name]: each.get(name) for name in _LISTS}
        text = self._offers.current.find_unknown(lists)
        return (
            [Notice(f"{text}. It takes effect once there is one.", is_problem=True)] if text else []
        )

    def operation(self, call: Call) -> str:
        """Return the path of the operations of the one that a page is about."""
        return f"{MANAGEMENT}/{self._noun}/{call.scope['path_params']['wire_id']}"

    def locate(self, call: Call, seat: Seat) -> str:
        """Return the address of its page."""
        return f"{seat.home}/{self._noun}/{call.scope['path_params']['wire_id']}"

    async def read_budgets(self, seat: Seat, subjects: Mapping[str, Rules]) -> Mapping[str, Any]:
        """By subject what `show_use` takes; what is used is None where it cannot be read now."""
        budgets = [
            Budget(subject, rules.limit, rules.window or "lifetime")
            for subject, rules in subjects.items()
        ]
        account = seat.account.name
        states = await self._limiter.read_budgets(account, budgets) if budgets else []
        used = {state.budget.subject: floor_cents(state.used) for state in states or ()}
        return {
            subject: {
                "used_cents": used.get(subject),
                "limit_cents": None if rules.limit is None else floor_cents(rules.limit),
                "limit_window": rules.window,
            }
            for subject, rules in subjects.items()
        }

    async def make(self, call: Call, seat: Seat, values: Values, **more: Any) -> Any:
        """Return what was made of a form, once however often it is sent."""
        body = {**self.read(values), **more}
        given = {name: value for name, value in body.items() if value not in (None, [])}
        key = values.get("idempotency_key", "")
        return await self._api.write(
            call, seat, "POST", f"{MANAGEMENT}/{self._noun}", given, key=key
        )

    def offer_creation(self, seat: Seat, title: str, submit: str, *fields: Field) -> Form:
        """Return the form for a new one."""
        name = Field("name", "Name", required=True, most=100)
        once = (("idempotency_key", secrets.token_urlsafe(18)),)
        path = f"{seat.home}/{self._noun}"
        return seat.offer(path, submit, (name, *fields), hidden=once, title=title, opener=title)

    def offer_change(self, seat: Seat, path: str, opener: str, name: str, *fields: Field) -> Form:
        """Return the form that changes it."""
        own = Field("name", "Name", value=name, required=True, most=100)
        return seat.offer(f"{path}/change", "Save", (own, *fields), title="Change", opener=opener)


class _Record(Protocol):
    @property
    def shown(self) -> Shown | None: ...


S = TypeVar("S", bound=_Record)


def take_shown(records: Iterable[S], after: str) -> tuple[list[tuple[S, Shown]], str]:
    """A page of records after a cursor, the newest first, and the next cursor. InvalidRequest."""
    found = [(each, each.shown) for each in records if each.shown is not None]
    position = read_cursor(after) if after else None
    rows, more = take_page(
        found, lambda row: row[1].position, after=position, limit=PER_PAGE, order="desc"
    )
    return rows, write_cursor(rows[-1][1].position) if more else ""


def show_use(each: Any) -> Mapping[str, Cell]:
    """Used, limit and calls a minute of a key or guardrail."""
    return {
        "Used": number(show_cents(each["used_cents"]), share_used(each)),
        "Limit": number(show_limit(each)),
    }


def read_limits(values: Values) -> dict[str, Any]:
    """Limits as the operations take them; an empty field is none."""
    limits: dict[str, Any] = {
        "limit_cents": _read_cents(values.get("limit", "")),
        "limit_window": values.get("limit_window") or None,
        "rpm_limit": read_count("rpm_limit", values),
    }
    for name in _LISTS[:2]:
        limits[name] = values.get(name, "").split() or None
    return limits


def read_guardrail(values: Values) -> dict[str, Any]:
    """Limits of a guardrail as the operations take them."""
    lists = {name: values.get(name, "").split() or None for name in _LISTS}
    return {**read_limits(values), "description": values.get("description") or None, **lists}


def _read_cents(text: str) -> int | Wrong | None:
    if not text.strip():
        return None
    try:
        cents = Decimal(text.strip()) * 100
    except ArithmeticError:
        return Wrong("must be an amount in dollars")
    if not cents.is_finite() or cents != cents.to_integral_value() or abs(cents) > 10**15:
        return Wrong("must be an amount in whole cents")
    return int(cents)


def read_count(name: str, values: Values) -> int | Wrong | None:
    """Return the whole number in a field; None where it is empty."""
    text = values.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        return Wrong("must be a whole number")
    return int(text)


def limit_fields(each: Any) -> list[Field]:
    """Controls of the limits of a key, with what it has."""
    cents, rate = each.get("limit_cents"), each.get("rpm_limit")
    hint = "With spaces between; a * at the end of one stands for any rest. Empty: all."
    dollars = "" if cents is None else f"{cents / 100:.2f}"
    return [
        Field("limit", "Limit in dollars", "number", dollars, param="limit_cents"),
        Field("limit_window", "Window", "select", each.get("limit_window") or "", options=_WINDOWS),
        Field("rpm_limit", "Calls a minute", "number", "" if rate is None else str(rate)),
        *(
            _list_field(name, title, each, hint)
            for name, title in zip(_LISTS[:2], ("Allowed models", "Allowed providers"), strict=True)
        ),
    ]


def guardrail_fields(each: Any) -> list[Field]:
    """Controls of the limits of a guardrail, with what it has."""
    return [
        Field("description", "Description", value=each.get("description") or "", most=1000),
        *limit_fields(each),
        *(
            _list_field(name, title, each)
            for name, title in zip(_LISTS[2:], ("Denied models", "Denied providers"), strict=True)
        ),
    ]


def _list_field(name: str, title: str, each: Any, hint: str = "") -> Field:
    text = " ".join(each.get(name) or ())
    return Field(name, title, value=text, hint=hint, most=4000, items=("entry", "entries"))


def show_lists(each: Any) -> list[tuple[str, Cell]]:
    """Return the lists of models and providers that are set."""
    return [
        (_LABELS[name], Cell(", ".join(each[name]) or "none"))
        for name in _LISTS
        if each.get(name) is not None
    ]


def share_used(each: Any) -> float | None:
    """Return the part of the limit that is used, 0 to 1; None where it is not known."""
    limit, used = each["limit_cents"], each["used_cents"]
    return used / limit if limit and used is not None else None


def show_limit(each: Any) -> str:
    """Return the limit and its window."""
    if each["limit_cents"] is None:
        return NOTHING
    return f"{show_cents(each['limit_cents'])} ({each['limit_window']})"
