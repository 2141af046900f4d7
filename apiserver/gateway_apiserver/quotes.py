"""What a call would reserve, worked out as admission does it and without being made (§2.7). Pure.

Used by the route of price quotes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from gateway_apiserver.drafts import draft_values, price_draft, price_values
from gateway_core.contract.errors import Conflict, InvalidRequest, NotFound
from gateway_core.domain.addresses import AddressPolicy
from gateway_core.domain.catalog import Catalog
from gateway_core.domain.operations import Operation
from gateway_core.domain.pricing import floor_moment, select_price
from gateway_core.domain.schedules import is_free
from gateway_core.domain.validation import apply_defaults, parse_body

Basis = Literal["exact", "maximum", "default_params"]


@dataclass(frozen=True, slots=True)
class QuoteCall:
    """Which call is asked about. `params` is None where none are given: the defaults count."""

    service: str
    action: str
    model_id: str | None
    params: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Quote:
    """What the call reserves, in micro-dollars, and what that figure rests on."""

    service: str
    action: str
    model_id: str | None
    free: bool
    micros: int
    basis: Basis


def read_quote_call(raw: bytes) -> QuoteCall:
    """The call that a body asks about. InvalidRequest, in either 400 form."""
    body = parse_body(raw)
    errors: dict[str, list[str]] = {}
    for name, kind in (("service", str), ("action", str), ("model", str), ("params", dict)):
        value = body.get(name)
        if value is None:
            if name in ("service", "action"):
                errors[name] = ["is required"]
        elif not isinstance(value, kind):
            errors[name] = ["must be an object" if kind is dict else "must be a string"]
        elif value == "":
            errors[name] = ["must not be blank"]
    for name in body:
        if name not in ("service", "action", "model", "params"):
            errors[name] = ["is not a known field"]
    model_id, params = body.get("model"), body.get("params")
    if not errors and params:
        own = params.get("model")
        if own is not None and model_id is not None and own != model_id:
            errors["model"] = ["differs from the model in params"]
        elif isinstance(own, str):
            model_id = own
    if errors:
        raise InvalidRequest(f"The request is invalid: {', '.join(errors)}.", errors=errors)
    return QuoteCall(body["service"], body["action"], model_id, params or None)


def quote_call(catalog: Catalog, call: QuoteCall, addresses: AddressPolicy, at: datetime) -> Quote:
    """What the call reserves if it is admitted at `at`.

    Without a model it is the most that any model of the path reserves which takes the params.

    Raises:
        InvalidRequest: the params do not fit the operation, as for a task create.
        NotFound: nothing is served under these names.
        Conflict: the model does not support the params, or has no price at `at`.
    """
    operation = catalog.find_operation(call.service, call.action)
    if operation is None:
        raise NotFound("Nothing is offered under this service and action.")
    if call.model_id is not None:
        return _quote_model(catalog, operation, call, call.model_id, addresses, at)
    quotes, refusal = [], None
    for model_id in catalog.models[call.service, call.action]:
        try:
            quotes.append(_quote_model(catalog, operation, call, model_id, addresses, at))
        except Conflict as error:
            refusal = error
    if not quotes:
        assert refusal is not None
        raise refusal
    dearest = max(quotes, key=lambda found: found.micros)
    cheapest = min(quotes, key=lambda found: found.micros)
    basis = dearest.basis if cheapest.micros == dearest.micros else "maximum"
    free = all(found.free for found in quotes)
    return Quote(call.service, call.action, None, free, dearest.micros, basis)


def _quote_model(
    catalog: Catalog,
    operation: Operation,
    call: QuoteCall,
    model_id: str,
    addresses: AddressPolicy,
    at: datetime,
) -> Quote:
    basis: Basis = "exact"
    if call.params is not None:
        named = call.params.get("model")
        values = {**call.params, "model": model_id if named is None else named}
        draft = draft_values(catalog, operation, call.service, values, addresses)
        if draft.model is None:
            raise _unknown_model()
        model = draft.model
        micros = price_draft(draft, model, at)
    else:
        found = catalog.find_model(call.service, call.action, model_id)
        if found is None:
            raise _unknown_model()
        model, basis = found, "default_params"
        micros = price_values(model, apply_defaults(operation, {}, model.rules), at)
    price = select_price(model.prices, floor_moment(at))
    free = price is not None and is_free(price)
    return Quote(call.service, call.action, model_id, free, micros, basis)


def _unknown_model() -> NotFound:
    return NotFound("Nothing is offered under this model.", code="model_not_found")
