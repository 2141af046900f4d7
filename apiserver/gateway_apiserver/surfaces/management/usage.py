"""`/usage`: what the account was charged, by day, key, model and operation (contract §9)."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from gateway_apiserver.surfaces.management.requests import TIME
from gateway_apiserver.surfaces.models import Count, Query, Shape
from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.accounts.authentication import Principal
from gateway_core.accounts.records import KeyRecord
from gateway_core.api.ids import id_to_name, name_to_id
from gateway_core.api.money import floor_cents
from gateway_core.billing.charges import Amounts, Charge
from gateway_core.billing.reports import (
    DIMENSIONS,
    Dimension,
    UsageDay,
    UsageLines,
    UsageReader,
    sum_lines,
)
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.informer import Cache

MOST_DAYS = 93
USUAL_DAYS = 30

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.A)


def _read_bound(text: str) -> date | datetime:
    """Return a day, or a moment in UTC."""
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
        if TIME.fullmatch(text):
            return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError("must be a day such as 2026-11-21, or a date and time with an offset")


Bound = Annotated[
    date | datetime,
    PlainValidator(_read_bound),
    WithJsonSchema({"type": "string", "anyOf": [{"format": "date"}, {"format": "date-time"}]}),
]


def _split_words(given: Any) -> Any:
    """Return the words of a parameter that is repeated, or has commas between them."""
    if not isinstance(given, list):
        return given
    return [word for text in given for word in text.split(",") if word]


class UsageQuery(Query):
    """Days, both inclusive, and the dimensions to group by."""

    start: Annotated[
        Bound | None, Field(description="The first UTC day; without it 30 days up to `end`.")
    ] = None
    end: Annotated[
        Bound | None,
        Field(description="The last UTC day, or the moment that ends it; without it today."),
    ] = None
    group_by: Annotated[
        list[Dimension],
        Field(max_length=len(DIMENSIONS), description="What is told apart, with commas between."),
        BeforeValidator(_split_words),
    ] = Field(default_factory=list)
    key_id: Annotated[
        str | None, Field(description="Only of this key; one that is not there has no usage.")
    ] = None


class UsageLine(Shape):
    """A sum of charges; only what the report tells apart is named."""

    day: date | None = None
    key_id: str | None = None
    model: str | None = None
    operation: str | None = None
    requests: Count
    input_tokens: Count
    output_tokens: Count
    cost_cents: Count
    cost_micros: Count


class UsageReport(Shape):
    """The charges between two days, both inclusive."""

    object: Literal["usage"]
    start: date
    end: date
    group_by: list[Dimension]
    data: list[UsageLine]


class UsageReports:
    """Reports of usage. `clock` gives the time now."""

    def __init__(
        self,
        reader: UsageReader,
        keys: Cache[KeyRecord],
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._reader = reader
        self._keys = keys
        self._clock = clock

    async def report(self, caller: Principal, query: UsageQuery) -> UsageReport:
        """Sums of charges by day; calls that ended just now are included."""
        first, last = self.choose_days(query)
        lines = await self.read(caller, first, last)
        key_name = None
        if query.key_id is not None:
            key_name = id_to_name(query.key_id) if query.key_id.startswith("key_") else ""
        dimensions: list[Dimension] = [name for name in DIMENSIONS if name in query.group_by]
        shown = [_show_line(line, dimensions) for line in sum_lines(lines, dimensions, key_name)]
        return UsageReport(object="usage", start=first, end=last, group_by=dimensions, data=shown)

    async def read(self, caller: Principal, first: date, last: date) -> UsageLines:
        """Return the lines of these days that the caller may see. Unavailable."""
        lines = await self._reader.read(caller.account.name, first, last)
        return self._confine(caller, lines)

    async def read_known(
        self,
        caller: Principal,
        first: date,
        last: date,
        days: Sequence[UsageDay],
        charges: Iterable[Charge],
        epoch: object,
    ) -> UsageLines:
        """Return the same of what is known, as the reader says. Unavailable."""
        account = caller.account.name
        lines = await self._reader.read_known(account, first, last, days, charges, epoch)
        return self._confine(caller, lines)

    def _confine(self, caller: Principal, lines: UsageLines) -> UsageLines:
        user = caller.confined_to
        return lines if user is None else lines.select(lambda line: self._is_own(line, user))

    def _is_own(self, line: Amounts, user: str) -> bool:
        key = None if line.key_name is None else self._keys.get(line.key_name)
        return key is not None and key.creator == user

    def choose_days(self, query: UsageQuery) -> tuple[date, date]:
        """Return the first and the last day that a query asks for. InvalidRequest."""
        last = self._clock().astimezone(UTC).date()
        if query.end is not None:
            # a moment is the end of what comes before it: midnight ends the day before
            last = _find_day(query.end, timedelta(microseconds=1))
        first = last - min(timedelta(USUAL_DAYS - 1), last - date.min)
        if query.start is not None:
            first = _find_day(query.start)
        if first > last:
            raise refuse_fields({"start": ["must not be after `end`"]})
        if (last - first).days >= MOST_DAYS:
            raise refuse_fields({"end": [f"must be at most {MOST_DAYS - 1} days after `start`"]})
        return first, last


def _find_day(bound: date | datetime, before: timedelta = timedelta()) -> date:
    """Return the day of a bound; of a moment the day that is `before` it."""
    return (bound - before).date() if isinstance(bound, datetime) else bound


def _show_line(line: Amounts, dimensions: list[Dimension]) -> UsageLine:
    names: dict[Dimension, tuple[str, Any]] = {
        "day": ("day", line.day),
        "key": ("key_id", name_to_id(line.key_name) if line.key_name else None),
        "model": ("model", line.model_id),
        "operation": ("operation", line.operation),
    }
    return UsageLine(
        **dict(names[dimension] for dimension in dimensions),
        requests=line.requests,
        input_tokens=line.input_tokens,
        output_tokens=line.output_tokens,
        cost_cents=floor_cents(line.micros),
        cost_micros=line.micros,
    )
