"""What a task create asks for, worked out from its body and the catalog alone. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway_core.api.errors import Conflict, InvalidRequest
from gateway_core.billing.prices import bound_task, floor_moment, quote, select_price
from gateway_core.egress.addresses import AddressPolicy, AddressRefused
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.suggestions import SCHEDULES_PATH, Allows, suggest_models
from gateway_core.tasks.operations import Operation
from gateway_core.tasks.validation import (
    apply_defaults,
    check_model,
    check_shape,
    fingerprint,
    parse_body,
    to_canonical_json,
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A body that fits its operation. `model` is None where `catalog` has none of that id.

    `given` is what the client sent, `complete` the same with defaults. The digest of either tells a
    replay: the first one also after a default has changed or the model has gone. `listing` says
    where the client finds the models, if not in the price list.
    """

    catalog: Catalog
    operation: Operation
    model_id: str
    model: Model | None
    given: Mapping[str, Any]
    complete: Mapping[str, Any]
    given_digest: str
    digest: str
    listing: str = ""


def draft_task(
    catalog: Catalog, operation: Operation, service: str, raw: bytes, addresses: AddressPolicy
) -> Draft:
    """Return the draft of a body as it was sent.

    Raises InvalidRequest, in either 400 form (contract §2.1).
    """
    return draft_values(catalog, operation, service, parse_body(raw), addresses)


def draft_values(
    catalog: Catalog,
    operation: Operation,
    service: str,
    values: Mapping[str, Any],
    addresses: AddressPolicy,
    listing: str = "",
) -> Draft:
    """Return the draft of a body that has been parsed. InvalidRequest, in the validation form."""
    given = check_values(operation, values, addresses)
    model_id = given["model"]
    model = catalog.find_model(service, operation.action, model_id)
    complete = apply_defaults(operation, given, model.rules if model else {})
    digests = fingerprint(given), fingerprint(complete)
    return Draft(catalog, operation, model_id, model, given, complete, *digests, listing)


def check_values(
    operation: Operation, values: Mapping[str, Any], addresses: AddressPolicy
) -> dict[str, Any]:
    """Return the values of a body that has been read, without defaults, whatever its model.

    Raises InvalidRequest, in the validation form.
    """
    given = check_shape(operation, values)
    callback_url = given.get("callback_url")
    if callback_url is not None:
        _check_callback(callback_url, addresses)
    return given


def find_model(draft: Draft, service: str, allows: Allows) -> Model:
    """Return the model that is called. InvalidRequest where the catalog has none of that id."""
    if draft.model is not None:
        return draft.model
    path = service, draft.operation.action
    hint = suggest_models(
        draft.catalog,
        draft.model_id,
        allows,
        lambda *served: served == path,
        draft.listing or f"GET {SCHEDULES_PATH}?service={service}",
    )
    raise _invalid_field("model", f"is not a supported model.{hint}")


def price_draft(draft: Draft, model: Model, now: datetime) -> int:
    """Return the micro-dollars that the call reserves.

    Raises Conflict where the model does not support what is asked, or has no price at `now`.
    """
    return price_values(model, draft.given, draft.complete, now)


def price_values(
    model: Model, given: Mapping[str, Any], complete: Mapping[str, Any], now: datetime
) -> int:
    """Micro-dollars that a call of the model reserves; `complete` is `given` with its defaults.

    Raises:
        Conflict: the model does not support the values, or has no price for them at `now`.
    """
    check_model(model.model_id, given, complete, model.rules)
    price = select_price(model.prices, floor_moment(now))
    try:
        micros = None if price is None else quote(price, bound_task(complete))
    except LookupError:
        micros = None
    if micros is None:
        raise Conflict(
            f"Model {model.model_id} has no price for this.", code="unsupported_by_model"
        )
    return micros


def to_input(draft: Draft) -> bytes:
    """Canonical JSON of what goes upstream."""
    upstream = {field.name for field in draft.operation.fields if field.goes_upstream}
    values = {name: value for name, value in draft.complete.items() if name in upstream}
    return to_canonical_json(values)


def _check_callback(url: str, addresses: AddressPolicy) -> None:
    try:
        addresses.check_url_literal(url)
    except AddressRefused as refused:
        raise _invalid_field("callback_url", refused.problem) from None


def _invalid_field(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"The request is invalid: {name}.", errors={name: [problem]}, param=name)
