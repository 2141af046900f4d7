"""Limits of keys and guardrails: spending, rate, models and providers (contract §9.1)."""

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway_core.api.resource import (
    ATOMIC_LIST,
    SET_LIST,
    Dollars,
    Micros,
    Part,
    Status,
    Time,
    rule,
)

Window = Literal["1h", "1d", "7d", "daily", "weekly", "monthly", "lifetime"]
"""`1h`, `1d` and `7d` are sliding windows, the others begin at 00:00 UTC, `lifetime` never ends."""

MOST_GUARDRAILS = 8
"""Guardrails of one key; every call is checked against each of them."""

MOST_ENTRIES = 64
"""Entries in one list of models or providers (contract §9.0)."""
MOST_ENTRY_CHARACTERS = 253
MOST_OBJECT_BYTES = 16 * 1024
"""All fields of a key or a guardrail together, as JSON (contract §9.0)."""

ENTRY_PATTERN = r"^[ -~]+$"
"""Printable ASCII."""

Entries = Annotated[
    list[
        Annotated[str, Field(min_length=1, max_length=MOST_ENTRY_CHARACTERS, pattern=ENTRY_PATTERN)]
    ],
    Field(
        max_length=MOST_ENTRIES,
        description="Exact names, or prefixes that end in *. An empty list allows nothing.",
        # the entries of a set would be repeated in managedFields
        json_schema_extra=ATOMIC_LIST,
    ),
]
RequestsPerMinute = Annotated[
    int, Field(ge=1, le=1000000, description="Paid calls in any trailing 60 seconds.")
]


CACHE_SECONDS = 86_400
"""Longest time for which an answer may be kept."""


class SpendLimit(Part):
    """Spending limit in a window."""

    micros: Annotated[
        Micros,
        Field(
            description="Most that may be spent in one window, in micro-dollars (1,000,000 = 1"
            " dollar). 0 allows only calls without a price."
        ),
    ]
    window: Annotated[
        Window,
        Field(
            description="1h, 1d, 7d: sliding windows. daily, weekly (from Monday), monthly: from"
            " 00:00 UTC. lifetime: never starts again."
        ),
    ]


class CallLimits(Part):
    """Restrictions and cache of calls: a part of the specs of keys and guardrails."""

    limit: Annotated[
        SpendLimit | None,
        Field(
            description="Most that may be spent; further paid calls get 429. Absent: no limit but"
            " the balance."
        ),
    ] = None
    requests_per_minute: Annotated[
        RequestsPerMinute | None,
        Field(
            description="Paid calls in any 60 seconds, besides the account's own rate. Absent: only"
            " that."
        ),
    ] = None
    allowed_models: Annotated[
        Entries | None,
        Field(
            description="Models that may be called: exact ids, or prefixes that end in *. Absent:"
            " all. Empty: none."
        ),
    ] = None
    allowed_providers: Annotated[
        Entries | None,
        Field(
            description="Services (provider segments of the REST paths) that may be called: exact,"
            " or prefixes that end in *. Absent: all. Empty: none."
        ),
    ] = None
    cache_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=CACHE_SECONDS,
            description="Seconds for which answers of language models are kept in Redis and sent"
            " again, free of charge, for the same request. Absent: they are not kept.",
        ),
    ] = None


class SpentStatus(Status):
    """Spending in the limit's window, or in total without one, as of the last look."""

    used_micros: Annotated[
        Micros | None,
        Field(
            description="Spending in the limit's current window, in micro-dollars; in total without"
            " a limit. Seconds old."
        ),
    ] = None
    used: Annotated[Dollars, Field(description="usedMicros in dollars.")] = None
    limit: Annotated[Dollars, Field(description="spec.limit.micros in dollars.")] = None
    reset_time: Annotated[
        Time | None,
        Field(
            description="When the limit's window ends or the oldest charge leaves it; absent for"
            " `lifetime` and without a limit."
        ),
    ] = None


def bound_size(*lists: str, notes: str | None = None) -> dict[str, Any]:
    """Return the CEL rule that bounds the total size of a spec's `lists` and its map of `notes`.

    It never counts more than the JSON has, so it accepts all that REST accepts. A larger spec of an
    older schema may be updated as long as it does not grow: otherwise such a key could not be
    revoked, nor removed from a guardrail.
    """

    def measure(spec: str) -> str:
        fields = [f"{spec}.{name}" for name in lists]
        sizes = [f"(has({field}) ? {field}.map(e, size(e) + 3).sum() : 0)" for field in fields]
        if notes is not None:
            field = f"{spec}.{notes}"
            both = f"size(bytes(k)) + size(bytes({field}[k])) + 6"
            sizes.append(f"(has({field}) ? {field}.map(k, {both}).sum() : 0)")
        return " + ".join(sizes)

    return {
        **rule(
            f"{measure('self')} <= {MOST_OBJECT_BYTES} || (oldSelf.hasValue() &&"
            f" {measure('self')} <= {measure('oldSelf.value()')})",
            f"all fields together must have at most {MOST_OBJECT_BYTES} bytes as JSON",
        ),
        "optionalOldSelf": True,
    }


def subject_of_key(name: str) -> str:
    """Return the subject of a key's spending: `key/<object name>`."""
    return f"key/{name}"


def subject_of_guardrail(name: str) -> str:
    """Return the subject of a guardrail's spending: `guardrail/<object name>`."""
    return f"guardrail/{name}"


Subject = Annotated[
    str,
    Field(
        max_length=80,
        pattern=r"^(key|guardrail)/.+$",
        description="What spending is counted under.",
    ),
]
GuardrailNames = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=63)]],
    Field(max_length=MOST_GUARDRAILS, json_schema_extra=SET_LIST),
]


def list_subjects(request: dict[str, Any]) -> tuple[str, ...]:
    """Subjects of a request: its key, and the guardrails that the key had at admission."""
    key, guardrails = request.get("keyName"), request.get("guardrailNames") or ()
    of_key = (subject_of_key(key),) if key else ()
    return (*of_key, *map(subject_of_guardrail, guardrails))
