"""GatewayUsage: charges of one account on one UTC day, or on all days before those kept.

The operator adds each ended task before it removes the task's finalizer. A rebuild of the account's
counters starts from it, so no task has to be kept for its price.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from gateway_core.api.limits import Subject
from gateway_core.api.resource import (
    AGE,
    ATOMIC_LIST,
    LongName,
    Micros,
    Name,
    Part,
    Resource,
    Time,
    checked,
    map_list,
    rule,
)

MOST_PENDING = 400
"""Names kept of added runs that are not yet known to be marked."""
MOST_ROWS = 200
"""Rows of the day's breakdown; further ones share a row without names."""
MINUTES_KEPT = 120
MOST_SUBJECTS = 4000
"""Keys and guardrails with their own spending in one object."""
MOST_JOURNALS = 256
"""Processes with their own journal mark in one day."""

Day = Annotated[str, Field(max_length=10, pattern=r"^[1-9]\d{3}-[01]\d-[0-3]\d$")]
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]


class UsageSpec(Part):
    """Whose usage it is, and when; it never changes."""

    account_name: Name
    day: Annotated[
        Day | None,
        Field(description="The UTC day; absent in the sum of all days that have objects no more."),
    ] = None


class Sums(Part):
    """What a stretch of time comes to. Requests are calls that reached an upstream."""

    requests: Count = 0
    failed: Count = 0
    charged_micros: Micros = 0
    input_tokens: Count = 0
    output_tokens: Count = 0


class MinuteSums(Sums):
    """One minute of the day."""

    minute: Annotated[int, Field(ge=0, le=1439)]


class HourSums(Sums):
    """One hour of the day."""

    hour: Annotated[int, Field(ge=0, le=23)]


class Row(Sums):
    """The day's sums of one key, model and operation. Without names: whatever found no row."""

    key_name: Annotated[
        LongName | None, Field(description="Absent for runs made with kubectl.")
    ] = None
    model_id: LongName | None = None
    operation: Annotated[
        str | None, Field(max_length=127, description="Service and action, with a slash between.")
    ] = None


class Folded(Part):
    """A run, or in the sum of past days a day's object, that is in the sums."""

    name: LongName
    uid: Annotated[str, Field(min_length=1, max_length=128)]


class Spent(Part):
    """What one key or one guardrail's pool was charged, in the buckets that windows are made of.

    Buckets are text, since an account may have hundreds of each of thousands: `615:300000` is
    minute (of the day), hour (of the day) or, in the sum of past days, day (`2026-11-21`), and
    micro-dollars; joined by commas, in order.
    """

    subject: Subject
    charged_micros: Micros = 0
    minutes: Annotated[str | None, Field(max_length=4096)] = None
    hours: Annotated[str | None, Field(max_length=1024)] = None
    days: Annotated[str | None, Field(max_length=2048)] = None
    last_time: Annotated[Time | None, Field(description="When it was last charged.")] = None


class JournalMark(Part):
    """How far one process's journal is in the sums: its objects up to this sequence."""

    process: Annotated[str, Field(min_length=1, max_length=63)]
    sequence: Count


class UsageStatus(Sums):
    """The sums, and the names of what was added last.

    Sums and names change in one compare-and-set, so what is named is added once.
    """

    cost: Annotated[str | None, Field(max_length=32, description="The charges in dollars.")] = None
    minutes: Annotated[list[MinuteSums] | None, map_list("minute", max_items=MINUTES_KEPT + 2)] = (
        None
    )
    hours: Annotated[list[HourSums] | None, map_list("hour", max_items=24)] = None
    rows: Annotated[
        list[Row] | None, Field(max_length=MOST_ROWS + 1, json_schema_extra=ATOMIC_LIST)
    ] = None
    spent: Annotated[
        list[Spent] | None, Field(max_length=MOST_SUBJECTS, json_schema_extra=ATOMIC_LIST)
    ] = None
    journal: Annotated[list[JournalMark] | None, map_list("process", max_items=MOST_JOURNALS)] = (
        None
    )
    pending: Annotated[
        list[Folded] | None,
        Field(description="In the sums, and not yet known to be marked so."),
        map_list("uid", max_items=MOST_PENDING),
    ] = None
    closed: Annotated[
        bool | None, Field(description="Whether the day is over for good, and can be moved.")
    ] = None
    through_day: Annotated[
        Day | None, Field(description="The newest day in the sum of past days.")
    ] = None


CLOSED_RULE = rule(
    "!has(oldSelf.closed) || !oldSelf.closed"
    " || (has(self.closed) && self.closed && self.chargedMicros == oldSelf.chargedMicros"
    " && self.requests == oldSelf.requests)",
    "a day that is closed may not be changed",
)
GROWING_RULE = rule(
    "self.chargedMicros >= oldSelf.chargedMicros && self.requests >= oldSelf.requests",
    "what was charged may not become less",
)


class GatewayUsage(Resource):
    """What an account was charged: one object an account and UTC day, and one for all before."""

    kind_name: ClassVar[str] = "GatewayUsage"
    plural: ClassVar[str] = "gatewayusages"
    short_name: ClassVar[str] = "gwusage"
    columns: ClassVar[list[Any]] = [
        ("Account", "string", ".spec.accountName", 0),
        ("Day", "string", ".spec.day", 0),
        ("Requests", "integer", ".status.requests", 0),
        ("Failed", "integer", ".status.failed", 0),
        ("Cost", "string", ".status.cost", 0),
        ("Through", "string", ".status.throughDay", 1),
        ("Closed", "boolean", ".status.closed", 1),
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.accountName", ".spec.day"]
    rules: ClassVar[list[dict[str, Any]]] = [
        rule(
            "self.metadata.name == self.spec.accountName + '-'"
            " + (has(self.spec.day) ? self.spec.day : 'before')",
            "metadata.name must be the account's name, a dash, and the day or `before`",
        )
    ]

    spec: Annotated[
        UsageSpec,
        Field(
            json_schema_extra=checked(
                rule("self == oldSelf", "`spec` may not be changed after creation")
            )
        ),
    ]
    status: Annotated[UsageStatus, Field(json_schema_extra=checked(CLOSED_RULE, GROWING_RULE))] = (
        Field(default_factory=UsageStatus)
    )


def usage_name(account: str, day: str | None) -> str:
    """Name of an account's usage of `day` (`2026-11-21`), or of all days before."""
    return f"{account}-{day or 'before'}"
