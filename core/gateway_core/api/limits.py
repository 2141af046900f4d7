"""What keys and guardrails restrict: how much may be spent in which window, how fast, on what.

Parts of their specs, and the words for windows that the wire and the objects share (contract §9.1).
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway_core.api.resource import Micros, Part, rule

Window = Literal["1h", "1d", "7d", "daily", "weekly", "monthly", "lifetime"]
"""`1h`, `1d` and `7d` trail the clock, the others begin at 00:00 UTC, `lifetime` never ends."""

MOST_GUARDRAILS = 8
"""Guardrails that one key may have: every call is held against each of them."""

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
        description="Exact names, or beginnings that end in *. An empty list allows nothing.",
        # a set's entries would stand in managedFields a second time
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    ),
]
RequestsPerMinute = Annotated[
    int, Field(ge=1, le=1000000, description="Paid calls in any trailing 60 seconds.")
]


class SpendLimit(Part):
    """How much may be spent in a window."""

    micros: Micros
    window: Window


def bound_size(*lists: str, notes: str | None = None) -> dict[str, Any]:
    """The CEL rule that bounds a spec as a whole: its `lists`, and its map of `notes`.

    It counts no more than the JSON has, so the rule refuses nothing that REST takes. A spec that
    an older schema stored larger may be updated as long as it does not grow: otherwise a key could
    not be revoked, and no key be taken out of a guardrail.
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
    """What a key's spending is counted under: `key/<object name>`."""
    return f"key/{name}"


def subject_of_guardrail(name: str) -> str:
    """What a guardrail's spending is counted under: `guardrail/<object name>`."""
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
    Field(max_length=MOST_GUARDRAILS, json_schema_extra={"x-kubernetes-list-type": "set"}),
]


def list_subjects(request: dict[str, Any]) -> tuple[str, ...]:
    """What a run's request is counted under: its key, and the guardrails the key had then."""
    key, guardrails = request.get("keyName"), request.get("guardrailNames") or ()
    of_key = (subject_of_key(key),) if key else ()
    return (*of_key, *map(subject_of_guardrail, guardrails))
