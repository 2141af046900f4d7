"""What a task asks for, complete: as admission stored it, or checked and completed here.

A task from REST was validated and completed at admission. One made with kubectl goes through the
same rules wherever its values are needed.
"""

from collections.abc import Mapping
from typing import Any

from gateway_core.api.conditions import Reason
from gateway_core.api.errors import GatewayError
from gateway_core.api.task import TaskRequest
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.tasks.archive import load_input
from gateway_core.tasks.validation import apply_defaults, check_model, check_shape
from gateway_operator.tasks.tools import Tools

_NOT_FOR_PROVIDERS = ("model", "callback_url")


class Unacceptable(Exception):
    """A task made with kubectl that REST would have refused: why, in terms of a failed task.

    `limit` is `status.failure.limit`, where a credit limit is the reason.
    """

    def __init__(
        self, reason: Reason, message: str, limit: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.limit = limit


async def read_values(tools: Tools, request: TaskRequest) -> dict[str, Any]:
    """The input with all defaults. Unacceptable, and what `load_input` raises."""
    values = await load_input(tools.store, request)
    if request.fingerprint is not None:
        return values
    _, complete = check_request(tools.catalog(), request, values)
    return {name: value for name, value in complete.items() if name not in _NOT_FOR_PROVIDERS}


async def read_stored_values(tools: Tools, request: TaskRequest) -> dict[str, Any]:
    """The input of a task that was taken in, also where its model is no longer offered.

    Then nobody knows the defaults of one made with kubectl, and it is as it was given. Raises what
    `load_input` raises.
    """
    try:
        return await read_values(tools, request)
    except Unacceptable:
        return await load_input(tools.store, request)


def check_request(
    catalog: Catalog, request: TaskRequest, values: dict[str, Any]
) -> tuple[Model, dict[str, Any]]:
    """The model, and the values with defaults, of a request that REST would have taken.

    Raises Unacceptable with the reason REST would have given.
    """
    model = catalog.find_model(request.service, request.action, request.model_id)
    if model is None or not model.operation.makes_tasks:
        raise Unacceptable(
            Reason.INVALID_REQUEST,
            f"Model {request.model_id} is not offered at {request.service}/{request.action}.",
        )
    body = {**values, "model": request.model_id, "callback_url": request.callback_url}
    try:
        given = check_shape(model.operation, body)
        complete = apply_defaults(model.operation, given, model.rules)
        check_model(model.model_id, given, complete, model.rules)
    except GatewayError as error:
        details = getattr(error, "errors", None) or {}
        texts = [f"{field} {text}" for field, problems in details.items() for text in problems]
        message = "; ".join(texts) or error.message
        raise Unacceptable(Reason.INVALID_REQUEST, message[:1000]) from error
    return model, complete
