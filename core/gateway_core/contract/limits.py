"""What keys and guardrails restrict: how much may be spent in which window, how fast, on what.

Parts of their specs, and the words for windows that the wire and the objects share (contract §9.1).
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway_core.contract.resource import Micros, Part

Window = Literal["1h", "1d", "7d", "daily", "weekly", "monthly", "lifetime"]
"""`1h`, `1d` and `7d` trail the clock, the others begin at 00:00 UTC, `lifetime` never ends."""

MOST_GUARDRAILS = 8
"""Guardrails that one key may have: every call is held against each of them."""

Entries = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=253)]],
    Field(
        max_length=256,
        description="Exact names, or beginnings that end in *. An empty list allows nothing.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    ),
]
RequestsPerMinute = Annotated[
    int, Field(ge=1, le=1000000, description="Paid calls in any trailing 60 seconds.")
]


class SpendLimit(Part):
    """How much may be spent in a window."""

    micros: Micros
    window: Window


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
