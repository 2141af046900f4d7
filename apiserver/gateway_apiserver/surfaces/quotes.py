"""The reservation of a call, computed as admission does it, without making it (§2.7). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from gateway_apiserver.surfaces.models import Creation, Text
from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.api.errors import Conflict, InvalidRequest, NotFound
from gateway_core.billing.prices import floor_moment, select_price
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.llm.formats.calls import Format, LlmCall
from gateway_core.llm.formats.requests import read_chat, read_generate, read_responses
from gateway_core.llm.service import price_call
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.moderation import read_call
from gateway_core.providers.price_list import is_free
from gateway_core.providers.suggestions import (
    SCHEDULES_PATH,
    allow_all,
    suggest_models,
    suggest_operations,
)
from gateway_core.tasks.drafts import check_values, price_values
from gateway_core.tasks.operations import CHAT, Operation
from gateway_core.tasks.validation import apply_defaults, to_canonical_json

Basis = Literal["exact", "maximum", "default_params"]


class QuoteRequest(Creation):
    """The body of a price quote."""

    service: Text
    action: Text
    model: Text | None = None
    params: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Quote:
    """The reservation of a call, in micro-dollars, and the basis of the figure."""

    service: str
    action: str
    model_id: str | None
    free: bool
    micros: int
    basis: Basis


def quote_call(
    catalog: Catalog, call: QuoteRequest, addresses: AddressPolicy, at: datetime
) -> Quote:
    """Return what the call reserves if it is admitted at `at`.

    The defaults count if it has no params.

    Without a model: the most that any model of the path reserves that accepts the params.

    Raises:
        InvalidRequest: the params do not fit the operation, as for a task create.
        NotFound: nothing is served under these names.
        Conflict: the model does not support the params, or has no price at `at`.
    """
    model_id = _find_model_id(call)
    operation = catalog.find_operation(call.service, call.action)
    if operation is None:
        hint = suggest_operations(catalog, call.service, call.action, allow_all, of_tasks=False)
        raise NotFound(f"Nothing is offered under this service and action.{hint}")
    models, given = catalog.models[call.service, call.action], None
    if call.params:
        # once for all models: a body may be large
        values = dict(call.params)
        if values.get("model") is None:
            values["model"] = model_id or next(iter(models))
        given = _check_params(operation, values, addresses)
    if model_id is not None:
        model = models.get(model_id)
        if model is None:
            path = call.service, call.action
            hint = suggest_models(
                catalog,
                model_id,
                allow_all,
                lambda *served: served == path,
                f"GET {SCHEDULES_PATH}",
            )
            raise NotFound(f"Nothing is offered under this model.{hint}", code="model_not_found")
        return _quote_model(model, given, at)
    quotes, refusal = [], None
    for model in models.values():
        try:
            quotes.append(_quote_model(model, given, at))
        except (Conflict, InvalidRequest) as error:
            refusal = error
    if not quotes:
        assert refusal is not None
        raise refusal
    dearest = max(quotes, key=lambda found: found.micros)
    cheapest = min(quotes, key=lambda found: found.micros)
    basis = dearest.basis if cheapest.micros == dearest.micros else "maximum"
    free = all(found.free for found in quotes)
    return Quote(call.service, call.action, None, free, dearest.micros, basis)


def _find_model_id(call: QuoteRequest) -> str | None:
    """Return the model of the call, in its params or beside them.

    Raises:
        InvalidRequest: these differ, or the one in the params is not a string.
    """
    own = (call.params or {}).get("model")
    if own is None:
        return call.model
    if not isinstance(own, str):
        raise refuse_fields({"model": ["must be a string"]})
    if call.model is not None and own != call.model:
        raise refuse_fields({"model": ["differs from the model in params"]})
    return own


def _check_params(
    operation: Operation, values: Mapping[str, Any], addresses: AddressPolicy
) -> Mapping[str, Any]:
    """Return the params that the price depends on. InvalidRequest in the validation form."""
    if operation.makes_tasks:
        return check_values(operation, values, addresses)
    try:
        if operation is CHAT:
            return {"call": _read_chat(values)}
        read_call(values)
    except InvalidRequest as error:
        raise _name_field(error) from None
    return {}


def _name_field(error: InvalidRequest) -> InvalidRequest:
    """Return a problem of a model's call in the validation form."""
    return InvalidRequest(error.message, errors={error.param or "params": [error.message]})


def _read_chat(values: Mapping[str, Any]) -> LlmCall:
    """Return the call of a body of any of the three formats."""
    size = len(to_canonical_json(values))
    if "messages" in values:
        return read_chat(values, size)
    if "contents" in values:
        return read_generate(values, size, model_id=str(values["model"]), stream=False)
    return read_responses(values, size)


def _assume_call(model: Model) -> LlmCall:
    """Return a call with the longest prompt and answer that the model declares."""
    bound = model.input_token_limit or model.output_token_limit
    return LlmCall(
        Format.CHAT,
        model.model_id,
        stream=False,
        body={},
        input_bound=bound,
        input_estimate=bound,
        has_media=True,
    )


def _quote_model(model: Model, given: Mapping[str, Any] | None, at: datetime) -> Quote:
    """Return the reservation of a call with the values, or with the model's defaults (None)."""
    if model.operation is CHAT:
        call = (given or {}).get("call") or _assume_call(model)
        try:
            micros = price_call(call, model, lambda: at).micros
        except InvalidRequest as error:
            raise _name_field(error) from None
    else:
        complete = apply_defaults(model.operation, given or {}, model.rules)
        micros = price_values(model, given or {}, complete, at)
    price = select_price(model.prices, floor_moment(at))
    return Quote(
        service=model.service,
        action=model.operation.action,
        model_id=model.model_id,
        free=price is not None and is_free(price),
        micros=micros,
        basis="default_params" if given is None else "exact",
    )
