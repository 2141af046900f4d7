"""Bodies and queries of Platform Management, and the specs that they make (contract §9). Pure.

A null counts as absent in a create; in a merge patch it clears the field.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from gateway_apiserver.surfaces.models import (
    NOT_BLANK,
    Creation,
    Limit,
    Query,
    Request,
    Whole,
    at_most,
    drop_repeats,
)
from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.accounts.guardrails import measure_fields
from gateway_core.api.key import MOST_METADATA, MOST_OVERLAP_SECONDS
from gateway_core.api.limits import (
    CACHE_SECONDS,
    MOST_ENTRIES,
    MOST_ENTRY_CHARACTERS,
    MOST_OBJECT_BYTES,
    Window,
)
from gateway_core.api.money import MAX_MICROS, MICROS_PER_CENT
from gateway_core.api.times import format_time

MOST_KEY_IDS = 100
TIME = re.compile(r"[2-9]\d{3}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})", re.A)
_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def _refuse_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _check_entry(text: str) -> str:
    if "*" in text[:-1]:
        raise ValueError("may have a * at its end only")
    if not (text.isascii() and text.isprintable()):
        raise ValueError("must have printable ASCII characters only")
    return text


def _to_utc(text: str) -> str:
    """Whole seconds in UTC, with Z (contract §0.3)."""
    problem = "must be a date and time with an offset, of the year 2000 or later"
    if not TIME.fullmatch(text):
        raise ValueError(problem)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(problem) from None
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        moment = _LATEST
    return format_time(moment)


Title = Annotated[
    str,
    Field(min_length=1, max_length=100, json_schema_extra={"pattern": NOT_BLANK}),
    AfterValidator(_refuse_blank),
]
Moment = Annotated[
    str,
    AfterValidator(_to_utc),
    Field(json_schema_extra={"format": "date-time", "pattern": "^[2-9][0-9]{3}-"}),
]
Cents = Annotated[int, Field(ge=0, le=MAX_MICROS // MICROS_PER_CENT), Whole]
Rate = Annotated[int, Field(ge=1, le=1_000_000), Whole]
Seconds = Annotated[int, Field(ge=0, le=MOST_OVERLAP_SECONDS), Whole]
CacheSeconds = Annotated[
    int,
    Field(
        ge=1,
        le=CACHE_SECONDS,
        description="How long answers of language models are kept and sent again for the same"
        " request.",
    ),
    Whole,
]
Entry = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MOST_ENTRY_CHARACTERS,
        json_schema_extra={"pattern": r"^[ -)+-~]*\*?$"},
    ),
    AfterValidator(_check_entry),
]
EntryList = Annotated[
    list[Entry],
    Field(
        max_length=MOST_ENTRIES,
        description="Exact names, or prefixes that end in *. An empty list allows nothing.",
    ),
    AfterValidator(drop_repeats),
]
NoteName = Annotated[str, Field(min_length=1, max_length=64)]
Note = Annotated[str, Field(max_length=512)]


_LIMIT_RULE: list[Any] = [
    {"properties": {"limit_cents": {"type": "null"}, "limit_window": {"type": "null"}}},
    {
        "required": ["limit_cents", "limit_window"],
        "properties": {"limit_cents": {"type": "integer"}, "limit_window": {"type": "string"}},
    },
]
"""An amount and its window, or neither."""


class KeyLimits(Request):
    """Limits of a key, as in `api.limits.CallLimits`."""

    limit_cents: Cents | None = None
    limit_window: Window | None = None
    rpm_limit: Rate | None = None
    allowed_models: EntryList | None = None
    allowed_providers: EntryList | None = None
    cache_seconds: CacheSeconds | None = None


class GuardrailLimits(KeyLimits):
    """Limits of a guardrail."""

    denied_models: EntryList | None = None
    denied_providers: EntryList | None = None


class KeyCreate(Creation, KeyLimits):
    """A new standard key."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _LIMIT_RULE})

    name: Title
    disabled: bool | None = None
    expires_at: Moment | None = None
    metadata: (
        Annotated[dict[NoteName, Note], Field(max_length=MOST_METADATA), at_most(MOST_METADATA)]
        | None
    ) = None


class KeyPatch(KeyLimits):
    """A merge patch of a key: null clears a field, omitted fields stay."""

    name: Title = ""
    disabled: bool | None = None
    expires_at: Moment | None = None
    metadata: Annotated[dict[NoteName, Note | None], Field(max_length=64), at_most(64)] | None = (
        None
    )


class Rotation(Request):
    """The rotation of a key."""

    overlap_seconds: Annotated[
        Seconds, Field(description="How long the old secret goes on opening.")
    ] = 0


class GuardrailCreate(Creation, GuardrailLimits):
    """A new guardrail, held against no key yet."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _LIMIT_RULE})

    name: Title
    description: Annotated[str, Field(max_length=1000)] | None = None


class GuardrailPatch(GuardrailLimits):
    """A merge patch of a guardrail: null clears a field, omitted fields stay."""

    name: Title = ""
    description: Annotated[str, Field(max_length=1000)] | None = None


class KeyIds(Request):
    """Keys to assign to a guardrail, or to unassign, all or none."""

    key_ids: Annotated[
        list[str], Field(min_length=1, max_length=MOST_KEY_IDS), AfterValidator(drop_repeats)
    ]


class ListQuery(Query):
    """Which part of a list: after which item, how many, in which order (contract §3.4)."""

    after: Annotated[
        str | None, Field(description="The id of the last item of the page before.")
    ] = None
    limit: Limit = 20
    order: Annotated[
        Literal["asc", "desc"], Field(description="By creation, the newest first by default.")
    ] = "desc"


class KeyQuery(ListQuery):
    """Which keys."""

    status: Literal["active", "disabled", "expired", "revoked"] | None = None
    name_contains: (
        Annotated[str, Field(max_length=100, description="Part of the name, in any case.")] | None
    ) = None


class DeleteQuery(Query):
    """Options of the deletion of a guardrail."""

    force: Annotated[
        Literal["true", "false"], Field(description="Also where keys are assigned to it.")
    ] = "false"


_FIELDS: Mapping[str, str] = {
    "name": "displayName",
    "description": "description",
    "disabled": "disabled",
    "expires_at": "expirationTime",
    "rpm_limit": "requestsPerMinute",
    "cache_seconds": "cacheSeconds",
    "allowed_models": "allowedModels",
    "denied_models": "deniedModels",
    "allowed_providers": "allowedProviders",
    "denied_providers": "deniedProviders",
    "metadata": "metadata",
}
_CENTS, _WINDOW = "limit_cents", "limit_window"


def write_spec(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a new object's spec that clients choose. InvalidRequest."""
    given = {name: value for name, value in values.items() if value is not None}
    spec = {_FIELDS[name]: value for name, value in given.items() if name in _FIELDS}
    limit = merge_limit(None, given)
    spec = spec if limit is None else {**spec, "limit": limit}
    _check_size(spec)
    return spec


def write_patch(spec: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch of `spec` for a client's merge patch, with changes only.

    Raises InvalidRequest.
    """
    patch = {_FIELDS[name]: value for name, value in values.items() if name in _FIELDS}
    if _CENTS in values or _WINDOW in values:
        patch["limit"] = merge_limit(spec.get("limit"), values)
    patch = {name: value for name, value in patch.items() if value != spec.get(name)}
    merged, notes = {**spec, **patch}, patch.get("metadata")
    if notes is not None:
        left = {**(spec.get("metadata") or {}), **notes}
        merged["metadata"] = {name: value for name, value in left.items() if value is not None}
        if len(merged["metadata"]) > MOST_METADATA:
            raise refuse_fields({"metadata": [f"must have at most {MOST_METADATA} items"]})
    if patch:
        _check_size(merged)
    return patch


def _check_size(spec: Mapping[str, Any]) -> None:
    """Raise InvalidRequest, naming the largest field, if all together are too large."""
    sizes = measure_fields(spec)
    if sum(sizes.values()) + 1 > MOST_OBJECT_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        public = next(public for public, name in _FIELDS.items() if name == largest)
        text = f"makes more than {MOST_OBJECT_BYTES} bytes of JSON with the other fields"
        raise refuse_fields({public: [text]})


def merge_limit(
    limit: Mapping[str, Any] | None, values: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the limit after a change: an amount and its window, or neither (contract §9).

    Clearing one of the two clears both. InvalidRequest if one is missing.
    """
    given = {name: values[name] for name in (_CENTS, _WINDOW) if name in values}
    if given and all(value is None for value in given.values()):
        return None
    cents, window = given.get(_CENTS), given.get(_WINDOW)
    micros = None if cents is None else cents * MICROS_PER_CENT
    if limit is not None:
        micros = micros if _CENTS in given else limit["micros"]
        window = window if _WINDOW in given else limit["window"]
    if (micros is None) is not (window is None):
        missing, other = (_CENTS, _WINDOW) if micros is None else (_WINDOW, _CENTS)
        raise refuse_fields({missing: [f"is required with {other}"]})
    return None if micros is None else {"micros": micros, "window": window}
