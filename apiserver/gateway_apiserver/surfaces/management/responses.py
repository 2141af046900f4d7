"""What Platform Management shows: the wire's objects, made of resources (contract §9). Pure.

The models also describe the answers in the OpenAPI document.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from gateway_apiserver.surfaces.management.budgets import BudgetView
from gateway_apiserver.surfaces.models import Shape
from gateway_core.accounts.records import UserRecord
from gateway_core.api.account import Role
from gateway_core.api.ids import REVOKED_AT_ANNOTATION, name_to_id
from gateway_core.api.limits import Window
from gateway_core.api.money import floor_cents
from gateway_core.api.resource import Object

KeyState = Literal["active", "disabled", "expired", "revoked"]


class Creator(Shape):
    """Who made a key, with their present role in the account."""

    id: int
    name: str
    role: Role | None


class Key(Shape):
    """A standard key, without its secret."""

    id: str
    object: Literal["api_key"] = "api_key"
    name: str
    hint: str = Field(description="The first and last characters of its newest secret.")
    class_: Literal["standard"] = Field("standard", alias="class")
    status: KeyState
    created_at: str
    created_by: Creator | None
    updated_at: str
    last_used_at: str | None = Field(
        description="The last authenticated request with it, at most 60 s late."
    )
    expires_at: str | None
    disabled: bool
    revoked_at: str | None
    limit_cents: int | None
    limit_window: Window | None
    used_cents: int | None = Field(
        description="Charged in the window, or ever; null where it is not known now."
    )
    remaining_cents: int | None = Field(description="Left of the limit, holds taken off.")
    reset_at: str | None = Field(description="When what is used next becomes less.")
    rpm_limit: int | None
    allowed_models: list[str] | None
    allowed_providers: list[str] | None
    guardrail_ids: list[str]
    metadata: dict[str, str]


class KeyWithSecret(Key):
    """A key right after it was made or rotated."""

    secret: str | None = Field(description="Shown this once; null where the call is a replay.")


class Guardrail(Shape):
    """Limits that some keys share."""

    id: str
    object: Literal["guardrail"] = "guardrail"
    name: str
    description: str | None
    created_at: str
    updated_at: str
    limit_cents: int | None
    limit_window: Window | None
    used_cents: int | None = Field(
        description="Charged to the pool in the window, or ever; null where it is not known now."
    )
    remaining_cents: int | None
    reset_at: str | None
    rpm_limit: int | None
    allowed_models: list[str] | None
    denied_models: list[str] | None
    allowed_providers: list[str] | None
    denied_providers: list[str] | None
    assigned_key_count: int


class Assignment(Shape):
    """A key that a guardrail holds for."""

    object: Literal["guardrail_assignment"] = "guardrail_assignment"
    key_id: str
    key_name: str
    key_status: KeyState


class Assigned(Shape):
    """How many keys of the call are assigned now."""

    assigned_count: int


class Unassigned(Shape):
    """How many keys of the call are not assigned now."""

    unassigned_count: int


class DeletedKey(Shape):
    """That a key is revoked."""

    id: str
    object: Literal["api_key"] = "api_key"
    deleted: Literal[True] = True


class DeletedGuardrail(Shape):
    """That a guardrail is gone."""

    id: str
    object: Literal["guardrail"] = "guardrail"
    deleted: Literal[True] = True


class Member(Shape):
    """Somebody with a role in the account."""

    id: int
    object: Literal["member"] = "member"
    name: str
    email: str
    role: Role
    suspended: bool
    created_at: str


def render_key(
    obj: Object,
    *,
    now: datetime,
    creator: UserRecord | None,
    guardrails: Sequence[str],
    budget: BudgetView,
    used: float | None = None,
) -> Key:
    """The key of an object. `guardrails` are the names of its guardrails.

    `used` is the last use in Unix seconds where that is known; the status may tell of it too.
    """
    spec, meta, status = obj["spec"], obj["metadata"], obj.get("status") or {}
    return Key(
        id=name_to_id(meta["name"]),
        name=spec["displayName"],
        hint=_find_hint(spec, status),
        status=tell_status(spec, now),
        created_at=meta["creationTimestamp"],
        created_by=_render_creator(creator, spec["accountName"]),
        updated_at=_find_change(meta),
        last_used_at=_find_use(status, used),
        expires_at=_to_wire_time(spec.get("expirationTime")),
        disabled=spec.get("disabled", False),
        revoked_at=_find_revocation(obj) if spec.get("revoked") else None,
        **_render_limits(spec, budget),
        guardrail_ids=[name_to_id(name) for name in guardrails],
        metadata=spec.get("metadata") or {},
    )


def render_guardrail(obj: Object, *, assigned: int, budget: BudgetView) -> Guardrail:
    """The guardrail of an object; `assigned` is how many keys there are under it."""
    spec, meta = obj["spec"], obj["metadata"]
    return Guardrail(
        id=name_to_id(meta["name"]),
        name=spec["displayName"],
        description=spec.get("description"),
        created_at=meta["creationTimestamp"],
        updated_at=_find_change(meta),
        **_render_limits(spec, budget),
        denied_models=spec.get("deniedModels"),
        denied_providers=spec.get("deniedProviders"),
        assigned_key_count=assigned,
    )


def render_member(user: UserRecord, role: Role) -> Member:
    """The member that a user is in the account where they have this role."""
    return Member(
        id=user.id,
        name=user.display_name,
        email=user.email,
        role=role,
        suspended=user.suspended,
        created_at=user.created_at,
    )


def tell_status(spec: Mapping[str, Any], now: datetime) -> KeyState:
    """What a key is: revoked before expired before disabled."""
    expires = spec.get("expirationTime")
    if spec.get("revoked"):
        return "revoked"
    if expires and datetime.fromisoformat(expires) <= now:
        return "expired"
    return "disabled" if spec.get("disabled") else "active"


def _render_limits(spec: Mapping[str, Any], budget: BudgetView) -> dict[str, Any]:
    limit = spec.get("limit")
    return {
        "limit_cents": floor_cents(limit["micros"]) if limit else None,
        "limit_window": limit["window"] if limit else None,
        "used_cents": None if budget.used is None else floor_cents(budget.used),
        "remaining_cents": None if budget.left is None else floor_cents(budget.left),
        "reset_at": budget.reset.strftime("%Y-%m-%dT%H:%M:%SZ") if budget.reset else None,
        "rpm_limit": spec.get("requestsPerMinute"),
        "allowed_models": spec.get("allowedModels"),
        "allowed_providers": spec.get("allowedProviders"),
    }


def _render_creator(user: UserRecord | None, account: str) -> Creator | None:
    if user is None:
        return None
    return Creator(id=user.id, name=user.display_name, role=user.find_role(account))


def _find_hint(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Of the token that is not being rotated out; empty before the operator has made one."""
    tokens = spec.get("tokens") or status.get("tokens") or ()
    lasting = [token for token in tokens if "expirationTime" not in token]
    return next((token["hint"] for token in (*lasting, *tokens)), "")


def _find_change(meta: Mapping[str, Any]) -> str:
    """Time of the last change of the spec; the operator's writes of the status do not count."""
    times = [
        entry["time"]
        for entry in meta.get("managedFields") or ()
        if "time" in entry and not entry.get("subresource")
    ]
    latest: str = max([meta["creationTimestamp"], *times])
    return latest


def _find_revocation(obj: Object) -> str | None:
    """As the API noted it, or as the operator saw it where it was revoked with kubectl."""
    noted: str | None = (obj["metadata"].get("annotations") or {}).get(REVOKED_AT_ANNOTATION)
    if noted is not None:
        return noted
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if (condition["type"], condition["reason"]) == ("Ready", "Revoked"):
            return _to_wire_time(condition["lastTransitionTime"])
    return None


def _find_use(status: Mapping[str, Any], used: float | None) -> str | None:
    """The later of the two; both are in UTC with whole seconds then, which sort as texts."""
    known = None if used is None else datetime.fromtimestamp(used, UTC).isoformat()
    times = [_to_wire_time(time) for time in (known, status.get("lastUsedTime"))]
    return max((time for time in times if time is not None), default=None)


def _to_wire_time(text: str | None) -> str | None:
    """RFC 3339 in UTC with whole seconds (contract §0.3)."""
    if not text:
        return None
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
