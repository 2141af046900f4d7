"""Catalog: which models serve which path, from the GatewayModel objects; checks of their prices."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from types import MappingProxyType

from gateway_core.api.conditions import ConditionType, Reason
from gateway_core.api.model import FieldRule, GatewayModel, KeyedRoute, Route
from gateway_core.api.money import to_decimal_text
from gateway_core.api.price import Price
from gateway_core.billing.prices import (
    ANY_RESOLUTION,
    Unit,
    Usage,
    effective_time,
    find_second_price,
    list_units,
    quote,
)
from gateway_core.billing.token_prices import quote_tokens
from gateway_core.tasks.operations import OPERATIONS, Operation
from gateway_core.tasks.validation import check_rule

MOST_CALL_MICROS = 10**12
"""Micro-dollars that one call may cost: sums of thousands stay exact in a double's 53 bits."""
MOST_TOKENS = 32 * 2**20
"""Tokens of a prompt or an answer for the check of prices: a body of 32 MiB has no more."""


def check_prices(
    operation: Operation, rules: Mapping[str, FieldRule], prices: list[Price] | None
) -> tuple[Reason, str] | None:
    """Why these prices cannot price the model's calls, and what to correct; None where they can."""
    if not prices:
        text = "spec.prices must be given; perCallMicros: 0 makes it free"
        return Reason.PRICE_MISSING, text
    times = Counter(effective_time(price) for price in prices)
    if max(times.values()) > 1:
        text = "two of spec.prices take effect at the same time, so that neither is the last"
        return Reason.INVALID_PRICE, text
    resolutions = list_resolutions(operation, rules)
    for price in prices:
        problem = _check_price(operation, rules, resolutions, price)
        if problem is not None:
            return problem
    return None


def list_resolutions(operation: Operation, rules: Mapping[str, FieldRule]) -> tuple[str, ...]:
    """Resolutions of a model's calls; `*` alone where they have none."""
    field, rule = operation.field("output_resolution"), rules.get("output_resolution")
    if field is None or (rule is not None and not rule.supported):
        return (ANY_RESOLUTION,)
    allowed = field.values if rule is None or rule.allowed is None else rule.allowed
    return tuple(value for value in field.values if value in allowed)


def _check_price(
    operation: Operation,
    rules: Mapping[str, FieldRule],
    resolutions: tuple[str, ...],
    price: Price,
) -> tuple[Reason, str] | None:
    foreign = [unit for unit in list_units(price) if unit not in operation.units]
    if foreign:
        known = " and ".join(f"by {unit}" for unit in operation.units)
        text = f"spec.prices is by {foreign[0]}, but calls of {operation.action} are priced {known}"
        return Reason.INVALID_PRICE, text
    bound = _bound_all(operation, rules)
    if price.per_second:
        if bound.seconds is None:
            text = "spec.prices is by second, but spec.fields leaves calls without duration_seconds"
            return Reason.INVALID_PRICE, text
        missing = [name for name in resolutions if find_second_price(price, name) is None]
        if missing:
            text = f"spec.prices has no price per second for {', '.join(missing)}"
            return Reason.PRICE_MISSING, text
    dearest = max(quote(price, replace(bound, resolution=name)) for name in resolutions)
    if Unit.TOKEN in operation.units:
        dearest = quote_tokens(price, MOST_TOKENS, MOST_TOKENS, has_media=True)
    if dearest > MOST_CALL_MICROS:
        text = (
            f"by spec.prices one call may cost {to_decimal_text(dearest)} USD,"
            f" and at most {to_decimal_text(MOST_CALL_MICROS)} can be charged"
        )
        return Reason.INVALID_PRICE, text
    return None


def _bound_all(operation: Operation, rules: Mapping[str, FieldRule]) -> Usage:
    """Return the largest usage of a call, apart from its resolution."""
    field, rule = operation.field("duration_seconds"), rules.get("duration_seconds")
    if field is None or (rule is not None and not rule.supported):
        return Usage()
    most = field.maximum if rule is None or rule.maximum is None else rule.maximum
    return Usage(seconds=Fraction(min(most, field.maximum)))


@dataclass(frozen=True, slots=True)
class Model:
    """A callable model."""

    model_id: str
    operation: Operation
    service: str
    rules: Mapping[str, FieldRule]
    prices: tuple[Price, ...]
    routes: tuple[Route, ...]
    deadline_seconds: int
    deprecated: bool = False
    name: str = ""
    ready: bool | None = None
    """The object, and whether the operator reports it as usable; None where it has not looked."""
    display_name: str = ""
    created: int = 0
    """Unix seconds of the object's creation."""
    input_token_limit: int | None = None
    output_token_limit: int = 0
    """Longest prompt and answer of an LLM, in tokens."""
    unpriced: frozenset[str] = frozenset()
    """Fields and tools of LLM calls that are forwarded though the prices do not cover them."""
    keyed_route: KeyedRoute | None = None
    """The route in use, where the operator reports that its provider honours idempotency keys."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Callable models by (service, action) and then by id.

    `withdrawn` are models that are not callable, of ids that no callable model at their path has.
    """

    models: Mapping[tuple[str, str], Mapping[str, Model]] = field(default_factory=dict)
    withdrawn: tuple[GatewayModel, ...] = ()

    def find_operation(self, service: str, action: str) -> Operation | None:
        """Return the operation served at a path, None where no model serves it."""
        entry = self.models.get((service, action))
        return OPERATIONS[action] if entry else None

    def find_task_operation(self, service: str, action: str) -> Operation | None:
        """Return the operation, where its calls are tasks."""
        operation = self.find_operation(service, action)
        return operation if operation is not None and operation.makes_tasks else None

    def find_models(self, action: str, model_id: str) -> list[Model]:
        """Models of an id, of any service: ready ones first, then by object name."""
        found = [
            models[model_id]
            for (_, served), models in self.models.items()
            if served == action and model_id in models
        ]
        return sorted(found, key=lambda model: (not model.ready, model.name))

    def find_model(self, service: str, action: str, model_id: str) -> Model | None:
        """Return the model of an id at a path."""
        return self.models.get((service, action), {}).get(model_id)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an object cannot be used, and how to correct it."""

    reason: Reason
    message: str


def build_catalog(objects: Iterable[GatewayModel]) -> tuple[Catalog, dict[str, Problem]]:
    """Return the catalog of usable objects, and the problems of the others by object name.

    Of two objects for one model id at one path the older is used.
    """
    models: dict[tuple[str, str], dict[str, Model]] = {}
    owners: dict[tuple[str, str, str], str] = {}
    problems: dict[str, Problem] = {}
    ordered = sorted(objects, key=lambda o: (o.metadata.creation_timestamp or "", o.metadata.name))
    for obj in ordered:
        name, spec = obj.metadata.name, obj.spec
        problem = check_model_object(obj)
        identity = _identify(obj)
        if problem is None and identity in owners:
            problem = Problem(
                Reason.DUPLICATE_MODEL,
                f"model {spec.model_id} is already defined by {owners[identity]}",
            )
        if problem is not None:
            problems[name] = problem
            continue
        owners[identity] = name
        models.setdefault((spec.service, spec.action), {})[spec.model_id] = Model(
            model_id=spec.model_id,
            operation=OPERATIONS[spec.action],
            service=spec.service,
            rules=MappingProxyType({rule.name: rule for rule in spec.fields or ()}),
            prices=tuple(spec.prices or ()),
            routes=tuple(spec.routes),
            deadline_seconds=spec.deadline_seconds,
            deprecated=spec.deprecated,
            name=name,
            ready=_is_ready(obj),
            display_name=spec.display_name or spec.model_id,
            created=_read_created(obj),
            input_token_limit=spec.input_token_limit,
            output_token_limit=spec.output_token_limit,
            unpriced=frozenset(spec.unpriced or ()),
            keyed_route=_find_keyed_route(obj),
        )
    withdrawn = {_identify(obj): obj for obj in ordered[::-1] if _identify(obj) not in owners}
    return Catalog(MappingProxyType(models), tuple(withdrawn.values())), problems


def check_model_object(obj: GatewayModel) -> Problem | None:
    """Problem of one model by itself."""
    spec = obj.spec
    if spec.disabled:
        return Problem(Reason.DISABLED, "the model is disabled by spec.disabled")
    operation = OPERATIONS.get(spec.action)
    if operation is None:
        known = ", ".join(OPERATIONS)
        return Problem(Reason.UNKNOWN_ACTION, f"spec.action must be one of {known}")
    for rule in spec.fields or ():
        text = check_rule(operation, rule)
        if text is not None:
            return Problem(Reason.INVALID_FIELD, text)
    rules = {rule.name: rule for rule in spec.fields or ()}
    refusal = check_prices(operation, rules, spec.prices)
    return None if refusal is None else Problem(*refusal)


def _identify(obj: GatewayModel) -> tuple[str, str, str]:
    """Service, action and id of a model."""
    return obj.spec.service, obj.spec.action, obj.spec.model_id


def _find_keyed_route(obj: GatewayModel) -> KeyedRoute | None:
    """Return the route in the status, unless the spec no longer has it."""
    found = obj.status.keyed_route
    if found is None:
        return None
    routes = ((route.provider_name, route.upstream_model) for route in obj.spec.routes)
    return found if (found.provider_name, found.upstream_model) in routes else None


def _read_created(obj: GatewayModel) -> int:
    text = obj.metadata.creation_timestamp
    return int(datetime.fromisoformat(text).timestamp()) if text else 0


def _is_ready(obj: GatewayModel) -> bool | None:
    conditions = obj.status.conditions or ()
    status = next((c.status for c in conditions if c.type == ConditionType.READY), None)
    return None if status is None else status == "True"
