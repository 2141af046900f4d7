"""What pages of the console are made of: one table, one form, one plot, and few more. Pure.

The template `console/screen.html` renders each part by its `kind`. The template and
`Table.fill` escape all texts; `plots.draw_bars` escapes its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal
from urllib.parse import urlencode

from markupsafe import Markup, escape

from gateway_core.api.money import MICROS_PER_CENT
from gateway_core.api.times import parse_time

CellKind = Literal["text", "word", "number", "code", "state", "time"]
NOTHING = "\N{EN DASH}"
BEING_READ = "The list is being read. If it does not appear in a moment, reload the page."
_HEAD = '<span class="head" aria-hidden="true">%s</span>'
_CELL = '<td role="cell" class="%s">%s<span class="value">%s</span></td>'
_PLAIN = frozenset({"text", "word", "number"})
_GOOD = frozenset({"completed", "active", "delivered", "owner"})
_BAD = frozenset({"failed", "revoked", "undelivered", "expired", "suspended"})


@dataclass(frozen=True, slots=True)
class Cell:
    """A text of a table or a list of facts. `share`, 0 to 1, is shown as a meter beside it."""

    text: str
    kind: CellKind = "text"
    href: str = ""
    share: float | None = None

    @property
    def is_plain(self) -> bool:
        """True if it is a text alone. Tables show it without the template."""
        return self.kind in _PLAIN and not self.href and self.share is None

    @property
    def tone(self) -> str:
        """The look of a state; the text says the same."""
        word = self.text.lower()
        return "good" if word in _GOOD else "bad" if word in _BAD else "plain"


@dataclass(frozen=True, slots=True)
class Head:
    """A column."""

    text: str
    kind: CellKind = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells. `more` is the address of the next page."""

    kind: ClassVar[str] = "table"
    label: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Cell]]
    empty: str
    more: str = ""
    first: str = ""
    is_titled: bool = False

    def fill(self, show: Callable[[Cell], Markup]) -> Markup:
        """Return the rows as HTML; `show`, a macro of the template, renders cells beyond a text.

        A loop in the template would take most of the time of a page.
        """
        heads = [_HEAD % escape(head.text) for head in self.heads]
        pieces = []
        for row in self.rows:
            pieces.append('<tr role="row">')
            for head, one in zip(heads, row, strict=True):
                text = f"<bdi>{escape(one.text)}</bdi>" if one.is_plain else show(one)
                pieces.append(_CELL % (one.kind, head, text))
            pieces.append("</tr>\n")
        return Markup("".join(pieces))  # noqa: S704 - texts are escaped above


@dataclass(frozen=True, slots=True)
class Field:
    """A control of a form. `options` are values and texts of a choice, or suggestions for a text.

    `param` is the API's name of the value where it has another one. `items` is what one and
    several of its values are called, in one that holds several.
    """

    name: str
    label: str
    type: str = "text"
    value: str = ""
    hint: str = ""
    options: Sequence[tuple[str, str]] = ()
    required: bool = False
    most: int = 200
    param: str = ""
    items: tuple[str, str] = ("", "")
    autocomplete: str = "off"


@dataclass(frozen=True, slots=True)
class Form:
    """A form. `token` is empty for one that only chooses what is shown (GET).

    One that chooses what the `Region` of its page shows `filters`: scripts send it while it is
    filled in. `opener` is the text of what opens it, for a form that is seldom wanted or ends
    something. `second` is name and text of another button that sends it. What one that `streams`
    is answered with is shown below it while it arrives, where scripts run.
    """

    kind: ClassVar[str] = "form"
    action: str
    submit: str
    fields: Sequence[Field] = ()
    hidden: Sequence[tuple[str, str]] = ()
    token: str = ""
    title: str = ""
    text: str = ""
    opener: str = ""
    is_danger: bool = False
    streams: bool = False
    filters: bool = False
    uploads: bool = False
    second: tuple[str, str] | None = None


ONCE = "idempotency_key"
"""The hidden control by which a form that is sent again is the same request."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A form as it was sent to this path, to be shown so again.

    What became of one that `is_open` is not known: sent again it has to be the same request.
    `problems` are sentences by the name of the control that each belongs to. One that
    `is_filter` was sent in the address.
    """

    path: str
    given: Mapping[str, str]
    is_open: bool = False
    is_filter: bool = False
    problems: Mapping[str, str] = field(default_factory=dict)

    def is_of(self, form: Form) -> bool:
        """Return whether this form was sent, of several with one address."""
        names = {field.name for field in form.fields}
        if self.is_filter and (form.token or names.isdisjoint(self.given)):
            return False
        own = ((name, value) for name, value in form.hidden if name != ONCE)
        return form.action == self.path and all(
            self.given.get(name) == value for name, value in own
        )

    def hide(self, form: Form) -> list[tuple[str, str]]:
        """Return the hidden controls of the form, which was sent."""
        if not self.is_open:
            return [*form.hidden]
        return [(name, self.given.get(name, value)) for name, value in form.hidden]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values of one thing."""

    kind: ClassVar[str] = "facts"
    items: Sequence[tuple[str, Cell]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its name."""

    label: str
    value: str
    hint: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Tiles:
    """Figures side by side."""

    kind: ClassVar[str] = "tiles"
    items: Sequence[Tile]


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing (`plots`), and the same figures as a table."""

    kind: ClassVar[str] = "plot"
    title: str
    drawing: Markup
    table: Table


@dataclass(frozen=True, slots=True)
class Videos:
    """Videos that play in place."""

    kind: ClassVar[str] = "videos"
    urls: Sequence[str]


@dataclass(frozen=True, slots=True)
class Code:
    """Text in a fixed width, to be copied."""

    kind: ClassVar[str] = "code"
    title: str
    text: str
    is_secret: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that stands out; a `problem` is announced as an alert."""

    kind: ClassVar[str] = "notice"
    text: str
    is_problem: bool = False


@dataclass(frozen=True, slots=True)
class Hint:
    """A sentence of explanation."""

    kind: ClassVar[str] = "hint"
    text: str


@dataclass(frozen=True, slots=True)
class Links:
    """Where one may go from here: texts and addresses."""

    kind: ClassVar[str] = "links"
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a page that is read anew alone, by filters, by paging and after events.

    `events` is the address of events on changes; after each of them the region is read from the
    address `here`. A page has at most one.
    """

    kind: ClassVar[str] = "region"
    parts: "Sequence[Part]"
    here: str = ""
    events: str = ""


Part = Table | Form | Facts | Tiles | Plot | Videos | Code | Notice | Hint | Links | Region


@dataclass(frozen=True, slots=True)
class Screen:
    """A page: its title, and its parts from the top.

    The form that it answers `keeps` what was filled in.
    """

    title: str
    parts: Sequence[Part]
    back: tuple[str, str] | None = None
    keeps: bool = False

    def list_forms(self) -> Iterator[Form]:
        """Yield the forms from the top, those of its region too."""
        for part in self.parts:
            yield from _list_forms(part)


def _list_forms(part: Part) -> Iterator[Form]:
    if isinstance(part, Form):
        yield part
    elif isinstance(part, Region):
        for inner in part.parts:
            yield from _list_forms(inner)


def show_micros(micros: int | None) -> str:
    """Dollars, to the cent where that is exact, else as far as needed."""
    if micros is None:
        return NOTHING
    places = 2 if micros % MICROS_PER_CENT == 0 else 6
    text = f"{abs(micros) / 1_000_000:,.{places}f}"
    if places > 2:
        text = text.rstrip("0")
    return f"{'-' if micros < 0 else ''}${text}"


def show_cents(cents: int | None) -> str:
    """Dollars of whole cents."""
    return NOTHING if cents is None else show_micros(cents * MICROS_PER_CENT)


def show_count(number: int | None) -> str:
    """Return a number with separators."""
    return NOTHING if number is None else f"{number:,}"


def show_bytes(size: int) -> str:
    """Return a size in the largest unit of 1024 that leaves a number of at least 1."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"


def show_seconds(seconds: float | None) -> str:
    """Return a duration in words."""
    if seconds is None:
        return NOTHING
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def at(time: str | datetime | float | None, *, otherwise: str = NOTHING) -> Cell:
    """Return a moment: RFC 3339, Unix seconds or a datetime."""
    if time is None or time == "":
        return Cell(otherwise)
    if isinstance(time, int | float):
        time = datetime.fromtimestamp(time, UTC)
    moment = parse_time(time) if isinstance(time, str) else time
    return Cell(moment.isoformat(), "time")


def state(word: str) -> Cell:
    """Return a state as a badge."""
    return Cell(word, "state")


def number(text: str, share: float | None = None) -> Cell:
    """Return a figure, to the right."""
    return Cell(text, "number", share=share)


def numeric(text: str) -> Head:
    """Return a column of figures."""
    return Head(text, "number")


def locate(path: str, **values: str | int | None) -> str:
    """Return a local address; empty values are left out."""
    query = urlencode({name: value for name, value in values.items() if value not in (None, "")})
    return f"{path}?{query}" if query else path


def show_secret(secret: str, how: str) -> list[Part]:
    """Return a secret on the one page that has it, and how it is used."""
    text = "Copy it now: it is shown only this once."
    return [Notice(text), Code("Secret", secret, is_secret=True), Hint(how)]


def paginate(
    table: Table, path: str, chosen: Mapping[str, str], page: Any, query: Mapping[str, str]
) -> Table:
    """Return the table of a page of a REST list, with links to the next and the first page."""
    more = locate(path, **chosen, after=page["last_id"]) if page["has_more"] else ""
    return replace(table, more=more, first=locate(path, **chosen) if query.get("after") else "")
