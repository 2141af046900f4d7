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

    account_name: Annotated[Name, Field(description="Name of the GatewayAccount.")]
    day: Annotated[
        Day | None,
        Field(
            description="The UTC day (YYYY-MM-DD); absent in the sum of all days before those that"
            " have objects."
        ),
    ] = None


class Sums(Part):
    """What a stretch of time comes to. Requests are calls that reached an upstream."""

    requests: Annotated[Count, Field(description="Calls that reached a provider.")] = 0
    failed: Annotated[Count, Field(description="Calls that failed there.")] = 0
    charged_micros: Annotated[
        Micros, Field(description="Charges in micro-dollars (1,000,000 = 1 dollar).")
    ] = 0
    input_tokens: Annotated[Count, Field(description="Tokens of the input of LLM calls.")] = 0
    output_tokens: Annotated[Count, Field(description="Tokens of the output of LLM calls.")] = 0


class MinuteSums(Sums):
    """One minute of the day."""

    minute: Annotated[int, Field(ge=0, le=1439, description="Minute of the day in UTC, from 0.")]


class HourSums(Sums):
    """One hour of the day."""

    hour: Annotated[int, Field(ge=0, le=23, description="Hour of the day in UTC, from 0.")]


class Row(Sums):
    """The day's sums of one key, model and operation. Without names: whatever found no row."""

    key_name: Annotated[
        LongName | None,
        Field(description="Name of the GatewayKey; absent for runs made with kubectl."),
    ] = None
    model_id: Annotated[LongName | None, Field(description="Id of the model.")] = None
    operation: Annotated[
        str | None, Field(max_length=127, description="Service and action, joined by a slash.")
    ] = None


class Folded(Part):
    """A run, or in the sum of past days a day's object, that is in the sums."""

    name: Annotated[LongName, Field(description="Name of the object.")]
    uid: Annotated[
        str, Field(min_length=1, max_length=128, description="metadata.uid of the object.")
    ]


class Spent(Part):
    """What one key or one guardrail's pool was charged, in the buckets that windows are made of.

    Buckets are text, since an account may have hundreds of each of thousands: `615:300000` is
    minute (of the day), hour (of the day) or, in the sum of past days, day (`2026-11-21`), and
    micro-dollars; joined by commas, in order.
    """

    subject: Subject
    charged_micros: Annotated[Micros, Field(description="Charges in micro-dollars.")] = 0
    minutes: Annotated[
        str | None,
        Field(
            max_length=4096,
            description="Charges by minute of the day: `615:300000` is minute and micro-dollars;"
            " joined by commas.",
        ),
    ] = None
    hours: Annotated[
        str | None,
        Field(max_length=1024, description="Charges by hour of the day, in the same form."),
    ] = None
    days: Annotated[
        str | None,
        Field(
            max_length=2048,
            description="Charges by day, in the sum of past days: `2026-11-21:300000`; joined by"
            " commas.",
        ),
    ] = None
    last_time: Annotated[Time | None, Field(description="When the last charge was added.")] = None


class JournalMark(Part):
    """How far one process's journal is in the sums: its objects up to this sequence."""

    process: Annotated[
        str,
        Field(
            min_length=1, max_length=63, description="Name of the process that writes the journal."
        ),
    ]
    sequence: Annotated[
        Count, Field(description="Number of its last journal object that is in the sums.")
    ]


class UsageStatus(Sums):
    """The sums, and the names of what was added last.

    Sums and names change in one compare-and-set, so what is named is added once.
    """

    cost: Annotated[str | None, Field(max_length=32, description="Charges in dollars.")] = None
    minutes: Annotated[
        list[MinuteSums] | None,
        Field(description="Sums by minute, of the last 120 minutes that had calls."),
        map_list("minute", max_items=MINUTES_KEPT + 2),
    ] = None
    hours: Annotated[
        list[HourSums] | None, Field(description="Sums by hour."), map_list("hour", max_items=24)
    ] = None
    rows: Annotated[
        list[Row] | None,
        Field(
            max_length=MOST_ROWS + 1,
            json_schema_extra=ATOMIC_LIST,
            description="Sums by key, model and operation; at most 200, further ones share a row"
            " without names.",
        ),
    ] = None
    spent: Annotated[
        list[Spent] | None,
        Field(
            max_length=MOST_SUBJECTS,
            json_schema_extra=ATOMIC_LIST,
            description="Charges by key and guardrail, from which their windows are computed.",
        ),
    ] = None
    journal: Annotated[
        list[JournalMark] | None,
        Field(description="How far the journal of each process is in the sums."),
        map_list("process", max_items=MOST_JOURNALS),
    ] = None
    pending: Annotated[
        list[Folded] | None,
        Field(description="Runs that are in the sums and may not be marked so yet."),
        map_list("uid", max_items=MOST_PENDING),
    ] = None
    closed: Annotated[
        bool | None,
        Field(
            description="Whether the day can get no more charges and may be added to the sum of"
            " past days."
        ),
    ] = None
    through_day: Annotated[Day | None, Field(description="Newest day in the sum of past days.")] = (
        None
    )


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
