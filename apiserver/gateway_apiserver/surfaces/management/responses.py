"""Responses of Platform Management, made of resources and budgets (contract §9)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway_apiserver.surfaces.models import Shape
from gateway_core.accounts.guardrails import find_hint
from gateway_core.accounts.records import UserRecord
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.account import Role
from gateway_core.api.ids import REVOKED_AT_ANNOTATION, name_to_id
from gateway_core.api.limits import Window
from gateway_core.api.money import floor_cents
from gateway_core.api.resource import Object
from gateway_core.api.times import format_time
from gateway_core.billing.counters import Budget, BudgetState
from gateway_core.billing.windows import TRAILING, Buckets, find_reset

KeyState = Literal["active", "disabled", "expired", "revoked"]
CacheSeconds = Annotated[
    int | None,
    Field(
        exclude_if=lambda seconds: seconds is None,
        description="How long answers of language models are kept; absent where they are not.",
    ),
]
"""Not a field of contract §9, so it is there only where it is set."""


class Creator(Shape):
    """The creator of a key, with their present role in the account."""

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
    cache_seconds: CacheSeconds = None
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
    cache_seconds: CacheSeconds = None
    assigned_key_count: int


class Assignment(Shape):
    """A key that is assigned to a guardrail."""

    object: Literal["guardrail_assignment"] = "guardrail_assignment"
    key_id: str
    key_name: str
    key_status: KeyState


class Assigned(Shape):
    """Number of keys of the call that are assigned now."""

    assigned_count: int


class Unassigned(Shape):
    """Number of keys of the call that are not assigned now."""

    unassigned_count: int


class DeletedKey(Shape):
    """Confirmation of a revocation."""

    id: str
    object: Literal["api_key"] = "api_key"
    deleted: Literal[True] = True


class DeletedGuardrail(Shape):
    """Confirmation of a deletion."""

    id: str
    object: Literal["guardrail"] = "guardrail"
    deleted: Literal[True] = True


class Member(Shape):
    """A user with a role in the account."""

    id: int
    object: Literal["member"] = "member"
    name: str
    email: str
    role: Role
    suspended: bool
    created_at: str


class SecretState(Shape):
    """The state of the secret, and until when the previous one also signs callbacks."""

    object: Literal["webhook_secret"] = "webhook_secret"
    is_set: bool
    previous_signs_until: str | None


class RotatedSecret(Shape):
    """A new secret, which is shown here alone."""

    object: Literal["webhook_secret"] = "webhook_secret"
    secret: str
    previous_signs_until: str | None


class TestResult(Shape):
    """The result of a test: the receiver's status, none without an answer."""

    object: Literal["webhook_test"] = "webhook_test"
    delivered: bool
    status: int | None
    result: str
    seconds: float


@dataclass(frozen=True, slots=True)
class BudgetView:
    """Micro-dollars used, and left below the limit with holds taken off; None: not known, no limit.

    `reset` is when less is used without anything done; None for never, or where nothing is used.
    """

    used: int | None
    left: int | None
    reset: datetime | None


class BudgetReader:
    """Reads budgets of one account at a time."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def read(
        self, account: str, subjects: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, BudgetView]:
        """By subject (`api.limits`), of objects of keys and guardrails.

        While the counters are away: what the operator has last seen, which is in their statuses.
        """
        budgets = [make_budget(subject, obj["spec"]) for subject, obj in subjects.items()]
        if not budgets:
            return {}
        states = await self._limiter.read_budgets(account, budgets)
        if states is None:
            return {subject: view_status(obj) for subject, obj in subjects.items()}
        return {state.budget.subject: view_state(state) for state in states}


def make_budget(subject: str, spec: Mapping[str, Any]) -> Budget:
    """Return the budget of a spec; without a limit it counts all charges ever."""
    limit = spec.get("limit") or {}
    return Budget(subject, limit.get("micros"), limit.get("window", "lifetime"))


def view_unused(spec: Mapping[str, Any], now: datetime) -> BudgetView:
    """Return the budget of a spec without charges."""
    budget = make_budget("", spec)
    reset = find_reset(Buckets(), budget.window or "lifetime", now)
    return BudgetView(0, budget.limit, None if budget.window in TRAILING else reset)


def view_state(state: BudgetState) -> BudgetView:
    """Return a budget of the counters."""
    limit, window = state.budget.limit, state.budget.window
    idle = window in TRAILING and not state.used
    reset = None if idle or state.reset is None else datetime.fromtimestamp(state.reset, UTC)
    left = None if limit is None else max(0, limit - state.used - state.held)
    return BudgetView(state.used, left, reset)


def view_status(obj: Mapping[str, Any]) -> BudgetView:
    """Return a budget of the object's status."""
    status, limit = obj.get("status") or {}, obj["spec"].get("limit")
    used, reset = status.get("usedMicros"), status.get("resetTime")
    left = None if limit is None or used is None else max(0, limit["micros"] - used)
    moment = datetime.fromisoformat(reset).astimezone(UTC) if reset else None
    return BudgetView(used, left, moment)


def render_key(
    obj: Object,
    *,
    now: datetime,
    creator: UserRecord | None,
    guardrails: Sequence[str],
    budget: BudgetView,
    used: float | None = None,
) -> Key:
    """Return the key of an object. `guardrails` are the names of its guardrails.

    `used` is the last known use in Unix seconds; the status may have a later one.
    """
    spec, meta, status = obj["spec"], obj["metadata"], obj.get("status") or {}
    return Key(
        id=name_to_id(meta["name"]),
        name=spec["displayName"],
        hint=find_hint(spec, status),
        status=find_status(spec, now),
        created_at=meta["creationTimestamp"],
        created_by=_render_creator(creator, spec["accountName"]),
        updated_at=_find_change(meta),
        last_used_at=find_use(status.get("lastUsedTime"), used),
        expires_at=_to_wire_time(spec.get("expirationTime")),
        disabled=spec.get("disabled", False),
        revoked_at=_find_revocation(obj) if spec.get("revoked") else None,
        **_render_limits(spec, budget),
        guardrail_ids=[name_to_id(name) for name in guardrails],
        metadata=spec.get("metadata") or {},
    )


def render_guardrail(obj: Object, *, assigned: int, budget: BudgetView) -> Guardrail:
    """Return the guardrail of an object; `assigned` is how many keys there are under it."""
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
    """Return a user as member of the account in which they have this role."""
    return Member(
        id=user.id,
        name=user.display_name,
        email=user.email,
        role=role,
        suspended=user.suspended,
        created_at=user.created_at,
    )


def find_status(spec: Mapping[str, Any], now: datetime) -> KeyState:
    """Status of a key: revoked before expired before disabled."""
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
        "reset_at": format_time(budget.reset) if budget.reset else None,
        "rpm_limit": spec.get("requestsPerMinute"),
        "allowed_models": spec.get("allowedModels"),
        "allowed_providers": spec.get("allowedProviders"),
        "cache_seconds": spec.get("cacheSeconds"),
    }


def _render_creator(user: UserRecord | None, account: str) -> Creator | None:
    if user is None:
        return None
    return Creator(id=user.id, name=user.display_name, role=user.find_role(account))


def _find_change(meta: Mapping[str, Any]) -> str:
    """Return the time of the last change of the spec.

    The operator's writes of the status do not count.
    """
    times = [
        entry["time"]
        for entry in meta.get("managedFields") or ()
        if "time" in entry and not entry.get("subresource")
    ]
    latest: str = max([meta["creationTimestamp"], *times])
    return latest


def _find_revocation(obj: Object) -> str | None:
    """Return the time noted by the API.

    For a revocation by kubectl it is the time of the operator's condition.
    """
    noted: str | None = (obj["metadata"].get("annotations") or {}).get(REVOKED_AT_ANNOTATION)
    if noted is not None:
        return noted
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if (condition["type"], condition["reason"]) == ("Ready", "Revoked"):
            return _to_wire_time(condition["lastTransitionTime"])
    return None


def find_use(noted: str | None, used: float | None) -> str | None:
    """Return the later use of status and counters: times in UTC with whole seconds."""
    known = None if used is None else datetime.fromtimestamp(used, UTC).isoformat()
    # they sort as texts
    times = [_to_wire_time(time) for time in (known, noted)]
    return max((time for time in times if time is not None), default=None)


def _to_wire_time(text: str | None) -> str | None:
    """RFC 3339 in UTC with whole seconds (contract §0.3)."""
    if not text:
        return None
    return format_time(datetime.fromisoformat(text))
