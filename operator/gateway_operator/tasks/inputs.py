"""The input of a task: as admission stored it, or validated and completed here.

A task from REST was validated and completed at admission. One made with kubectl goes through the
same rules wherever its values are needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway_core.api.conditions import Reason
from gateway_core.api.errors import GatewayError
from gateway_core.api.task import TaskRequest
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.storage.objects import ObjectStore
from gateway_core.tasks.archive import load_input
from gateway_core.tasks.validation import apply_defaults, check_model, check_shape
from gateway_operator.accounts.credentials import Refusal

_NOT_FOR_PROVIDERS = ("model", "callback_url")


@dataclass(eq=False)
class Inputs:
    """Reads inputs. InputDamaged, ObjectMissing and StoreUnavailable are raised by all reads."""

    store: ObjectStore
    catalog: Callable[[], Catalog]

    def find_model(self, request: TaskRequest) -> Model | None:
        """The model in the catalog as it is now."""
        return self.catalog().find_model(request.service, request.action, request.model_id)

    async def read(self, request: TaskRequest) -> dict[str, Any]:
        """The input with all defaults. Refusal."""
        values = await load_input(self.store, request)
        if request.fingerprint is not None:
            return values
        _, complete = self._check(request, values)
        return {name: value for name, value in complete.items() if name not in _NOT_FOR_PROVIDERS}

    async def read_adopted(self, request: TaskRequest) -> dict[str, Any]:
        """The input of an adopted task, also where its model is no longer offered.

        Then the defaults of a task made with kubectl are unknown, and it is returned as given.
        """
        try:
            return await self.read(request)
        except Refusal:
            return await load_input(self.store, request)

    async def check(self, request: TaskRequest) -> tuple[Model, dict[str, Any]]:
        """The model, and the values with defaults. Refusal, with the reason REST would give."""
        return self._check(request, await load_input(self.store, request))

    def _check(self, request: TaskRequest, values: dict[str, Any]) -> tuple[Model, dict[str, Any]]:
        model = self.find_model(request)
        if model is None or not model.operation.makes_tasks:
            raise Refusal(
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
            raise Refusal(Reason.INVALID_REQUEST, message[:1000]) from error
        return model, complete
