"""`list_models`, `get_model_info`, `list_actions` and `check_pricing`: the catalog and its prices.

A caller sees the models that its key or its account's guardrails allow.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import BaseModel, Field

from gateway_core.accounts.authentication import PolicyView
from gateway_core.api.errors import NotFound
from gateway_core.api.model import FieldRule
from gateway_core.billing.prices import floor_moment
from gateway_core.kube.clock import CLOCK
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.providers.price_list import Schedule, list_schedules
from gateway_core.providers.price_schedules import PriceSchedule, render_schedule
from gateway_core.providers.suggestions import find_nearest, suggest
from gateway_core.tasks.operations import Field as OperationField
from gateway_core.tasks.operations import FieldType, Modality
from gateway_mcpserver.tools.tool import (
    MOST_NAME_CHARACTERS,
    Arguments,
    Output,
    ReadingTool,
    ToolCall,
)

_TYPES: dict[FieldType, str] = {
    "text": "string",
    "url": "string",
    "urls": "array",
    "choice": "string",
    "boolean": "boolean",
    "integer": "integer",
}
NOT_PARAMS = frozenset({"model"})
"""Fields of operations that are arguments of `create_task` by themselves."""

Service = Annotated[
    str, Field(max_length=MOST_NAME_CHARACTERS, description="Only of this service.")
]
Action = Annotated[str, Field(max_length=MOST_NAME_CHARACTERS, description="Only of this action.")]


class AllowedModels:
    """The models of the present catalog that a caller may call."""

    def __init__(self, catalog: CatalogView, policies: PolicyView) -> None:
        self._catalog = catalog
        self._policies = policies

    @property
    def catalog(self) -> Catalog:
        """The present catalog. Unavailable."""
        return self._catalog.current

    async def list_all(
        self, call: ToolCall, service: str | None = None, action: str | None = None
    ) -> list[Model]:
        """Return the models, sorted by service, action and id. Unavailable."""
        policy = await self._policies.find(call.caller.principal.key)
        return [
            model
            for model in _sort(self.catalog)
            if (service or model.service) == model.service
            and (action or model.operation.action) == model.operation.action
            and policy.find_refusal(model.service, model.model_id) is None
        ]


def _sort(catalog: Catalog) -> Iterator[Model]:
    for _, models in sorted(catalog.models.items()):
        yield from (models[model_id] for model_id in sorted(models))


class ListModelsArguments(Arguments):
    """Arguments of `list_models`."""

    modality: Annotated[Modality | None, Field(description="Only models that make this.")] = None
    service: Service | None = None
    action: Action | None = None


class ListedModel(BaseModel):
    """One model of `list_models`."""

    model: str
    service: str
    action: str
    modality: Modality
    required_fields: list[str] = Field(description="Params that a task of the model must have.")


class ModelList(Output):
    """Output of `list_models`."""

    count: int
    models: list[ListedModel]


class ListModels(ReadingTool[ListModelsArguments]):
    """The models that the caller may use."""

    name = "list_models"
    title = "List models"
    description = (
        "Lists the models that this account may use, with their service, action and required"
        " params. Use get_model_info for all params of a model."
    )
    arguments = ListModelsArguments
    output = ModelList

    def __init__(self, models: AllowedModels) -> None:
        self._models = models

    async def run(self, given: ListModelsArguments, call: ToolCall) -> ModelList:
        """Return the models."""
        found = [
            ListedModel(
                model=model.model_id,
                service=model.service,
                action=model.operation.action,
                modality=model.operation.modality,
                required_fields=[field.name for field, _ in list_params(model) if field.required],
            )
            for model in await self._models.list_all(call, given.service, given.action)
            if (given.modality or model.operation.modality) == model.operation.modality
        ]
        return ModelList(count=len(found), models=found)


class ModelInfoArguments(Arguments):
    """Arguments of `get_model_info`."""

    model: Annotated[
        str,
        Field(min_length=1, max_length=MOST_NAME_CHARACTERS, description="Id of the model."),
    ]
    service: Service | None = None
    action: Action | None = None


class ModelField(BaseModel):
    """One param of a model."""

    name: str
    type: str
    description: str
    required: bool
    default: Any = None
    enum: list[str] | None = None
    min: int | None = Field(default=None, description="Least number, characters or items.")
    max: int | None = Field(default=None, description="Greatest number, most characters or items.")


class ModelMatch(BaseModel):
    """One of several models of an id."""

    model: str
    service: str
    action: str


class ModelInfo(Output):
    """Output of `get_model_info`."""

    omitted: ClassVar[frozenset[str]] = frozenset({"ambiguous", "matches"})

    model: str
    service: str
    action: str
    modality: Modality
    fields: list[ModelField]
    price: PriceSchedule
    ambiguous: bool | None = Field(
        default=None, description="True if other services or actions have a model of this id."
    )
    matches: list[ModelMatch] | None = Field(default=None, description="All, if there are several.")


class GetModelInfo(ReadingTool[ModelInfoArguments]):
    """All about one model."""

    name = "get_model_info"
    title = "Describe a model"
    description = (
        "Describes one model: its params with types, defaults and bounds, and its price. If several"
        " services or actions have a model of the id, the first is described and all are listed."
    )
    arguments = ModelInfoArguments
    output = ModelInfo

    def __init__(self, models: AllowedModels, now: Callable[[], datetime] = CLOCK.now) -> None:
        self._models = models
        self._now = now

    async def run(self, given: ModelInfoArguments, call: ToolCall) -> ModelInfo:
        """Return the model. NotFound."""
        allowed = await self._models.list_all(call, given.service, given.action)
        found = [model for model in allowed if model.model_id == given.model]
        if not found:
            near = find_nearest(given.model, dict.fromkeys(one.model_id for one in allowed))
            raise NotFound(
                f"No such model is offered to this account.{suggest(near)} list_models shows all."
            )
        model, *others = found
        matches = [
            ModelMatch(model=one.model_id, service=one.service, action=one.operation.action)
            for one in found
        ]
        entry = _find_schedules(self._models.catalog, self._now(), [model])[0]
        return ModelInfo(
            model=model.model_id,
            service=model.service,
            action=model.operation.action,
            modality=model.operation.modality,
            fields=[_describe_field(field, rule) for field, rule in list_params(model)],
            price=render_schedule(entry),
            ambiguous=True if others else None,
            matches=matches if others else None,
        )


class NoArguments(Arguments):
    """No arguments."""


class ActionGroup(BaseModel):
    """The actions of one modality."""

    modality: Modality
    actions: list[str]


class ActionList(Output):
    """Output of `list_actions`."""

    groups: list[ActionGroup]


class ListActions(ReadingTool[NoArguments]):
    """The actions that the caller's models have."""

    name = "list_actions"
    title = "List actions"
    description = "Lists the actions of the models that this account may use, by what they make."
    arguments = NoArguments
    output = ActionList

    def __init__(self, models: AllowedModels) -> None:
        self._models = models

    async def run(self, given: NoArguments, call: ToolCall) -> ActionList:
        """Return the actions."""
        groups: dict[Modality, set[str]] = {}
        for model in await self._models.list_all(call):
            groups.setdefault(model.operation.modality, set()).add(model.operation.action)
        return ActionList(
            groups=[
                ActionGroup(modality=modality, actions=sorted(actions))
                for modality, actions in sorted(groups.items())
            ]
        )


class PricingArguments(Arguments):
    """Arguments of `check_pricing`."""

    service: Annotated[
        str,
        Field(min_length=1, max_length=MOST_NAME_CHARACTERS, description="Service of the model."),
    ]
    action: Annotated[
        str,
        Field(min_length=1, max_length=MOST_NAME_CHARACTERS, description="Action of the model."),
    ]
    model: Annotated[
        str | None, Field(max_length=MOST_NAME_CHARACTERS, description="Id of the model.")
    ] = None


class Pricing(Output):
    """Output of `check_pricing`."""

    omitted: ClassVar[frozenset[str]] = frozenset({"prices"})

    supported: bool = Field(description="Whether this account may use it.")
    service: str
    action: str
    model: str | None
    price: PriceSchedule | None = Field(
        description="Null if it is not supported, or if several models differ."
    )
    prices: list[PriceSchedule] | None = Field(
        default=None, description="Of each model, if none was named and there are several."
    )


class CheckPricing(ReadingTool[PricingArguments]):
    """Prices of a model or of all models of an action."""

    name = "check_pricing"
    title = "Check prices"
    description = "Shows what a model costs now, or all models of an action if none is named."
    arguments = PricingArguments
    output = Pricing

    def __init__(self, models: AllowedModels, now: Callable[[], datetime] = CLOCK.now) -> None:
        self._models = models
        self._now = now

    async def run(self, given: PricingArguments, call: ToolCall) -> Pricing:
        """Return the prices."""
        allowed = await self._models.list_all(call, given.service, given.action)
        found = [model for model in allowed if (given.model or model.model_id) == model.model_id]
        shown = [
            render_schedule(entry)
            for entry in _find_schedules(self._models.catalog, self._now(), found)
        ]
        only = shown[0] if len(shown) == 1 else None
        return Pricing(
            supported=bool(shown),
            service=given.service,
            action=given.action,
            model=given.model or (only.model if only else None),
            price=only,
            prices=shown if len(shown) > 1 else None,
        )


def list_params(model: Model) -> list[tuple[OperationField, FieldRule | None]]:
    """Return the params that the model takes, and how it narrows each."""
    found = ((field, model.rules.get(field.name)) for field in model.operation.fields)
    return [
        (field, rule)
        for field, rule in found
        if field.name not in NOT_PARAMS and (rule is None or rule.supported)
    ]


def _find_schedules(catalog: Catalog, now: datetime, models: list[Model]) -> list[Schedule]:
    wanted = {(model.service, model.operation.action, model.model_id) for model in models}
    return [
        entry
        for entry in list_schedules(catalog, floor_moment(now))
        if (entry.service, entry.action, entry.model_id) in wanted
    ]


def _describe_field(field: OperationField, rule: FieldRule | None) -> ModelField:
    default, values = field.default, list(field.values) or None
    least, most = field.minimum, field.maximum
    if rule is not None:
        default = orjson.loads(rule.default) if rule.default is not None else default
        if rule.allowed is not None and values is not None:
            values = [value for value in values if value in rule.allowed]
        narrower = (rule.maximum, rule.max_items, rule.max_length)
        least = max(least, rule.minimum) if rule.minimum is not None else least
        most = min([most, *(bound for bound in narrower if bound is not None)])
    has_bounds = field.type in ("text", "urls", "integer")
    return ModelField(
        name=field.name,
        type=_TYPES[field.type],
        description=field.description,
        required=field.required,
        default=default,
        enum=values,
        min=least if has_bounds else None,
        max=most if has_bounds else None,
    )
