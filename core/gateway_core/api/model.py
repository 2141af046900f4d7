"""GatewayModel: a model that clients may call, its routes, field rules and price; GatewayPrompt.

The service and action segments of REST paths come from these objects alone.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from gateway_core.api.price import Price
from gateway_core.api.resource import (
    AGE,
    ATOMIC_LIST,
    HEALTH_COLUMNS,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    SET_LIST,
    Health,
    LongName,
    Name,
    Part,
    Resource,
    Status,
    checked,
    map_list,
    rule,
)

ANY_MODEL_ID = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
RESERVED_SERVICES = ("me", "files", "management", "price_schedules", "price_quotes")
"""Segments of `/api/v1` reserved for the gateway (contract, Reserved segments)."""


class Route(Part):
    """One place where the model runs.

    Tasks and moderations take the first whose provider is Ready. LLM calls are divided by weight
    among the routes of the lowest priority that can take a call, and fall back to the others.
    """

    name: Annotated[Name, Field(description="Name of the route, unique in the model.")]
    provider_name: Annotated[
        Name, Field(description="Name of the GatewayProvider that runs the model.")
    ]
    upstream_model: Annotated[LongName, Field(description="The provider's name of the model.")]
    priority: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="For LLM calls: routes with the lowest number are tried first; default 0.",
        ),
    ] = 0
    weight: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="For LLM calls: share of the calls among routes of the same priority;"
            " default 1. 0: only as a fallback.",
        ),
    ] = 1


class KeyedRoute(Part):
    """A provider that honours idempotency keys, and what it calls the model."""

    provider_name: Annotated[Name, Field(description="Name of the GatewayProvider.")]
    upstream_model: Annotated[LongName, Field(description="The provider's name of the model.")]


class FieldRule(Part):
    """How the model narrows one field of its operation; what it leaves open stays."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=r"^[a-z0-9_]+$",
            description="Name of the request field.",
        ),
    ]
    supported: Annotated[
        bool, Field(description="False refuses requests that have the field; default true.")
    ] = True
    allowed: Annotated[
        list[Annotated[str, Field(max_length=127)]] | None,
        Field(
            min_length=1,
            max_length=64,
            description="Values that a string field may have. Absent: all of the operation's.",
            json_schema_extra=SET_LIST,
        ),
    ] = None
    minimum: Annotated[
        int | None,
        Field(
            ge=-(2**31),
            le=2**31 - 1,
            description="Least value of a number. Absent: the operation's.",
        ),
    ] = None
    maximum: Annotated[
        int | None,
        Field(
            ge=-(2**31),
            le=2**31 - 1,
            description="Greatest value of a number. Absent: the operation's.",
        ),
    ] = None
    max_items: Annotated[
        int | None,
        Field(ge=0, le=1000, description="Most items of a list. Absent: the operation's."),
    ] = None
    max_length: Annotated[
        int | None,
        Field(
            ge=1, le=1000000, description="Most characters of a string. Absent: the operation's."
        ),
    ] = None
    default: Annotated[
        str | None,
        Field(
            max_length=1024,
            description='Value if the request lacks the field, as JSON, e.g. `"1080p"`. Absent: the'
            " operation's.",
        ),
    ] = None


class ModelSpec(Part):
    """A model of the catalog."""

    model_id: Annotated[
        LongName, Field(pattern=ANY_MODEL_ID, description="Id with which clients name the model.")
    ]
    service: Annotated[
        Name,
        Field(
            description="Provider segment of the REST path, `/api/v1/<service>/<action>`.",
            json_schema_extra=checked(
                rule(f"!(self in {list(RESERVED_SERVICES)})", "must not be a reserved segment")
            ),
        ),
    ]
    action: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=r"^[a-z0-9_]+$",
            description="Operation of the model, the second segment of the REST path:"
            " reference_to_video, moderations or chat.",
        ),
    ]
    display_name: Annotated[
        str | None,
        Field(max_length=127, description="Name of the model for people. Absent: modelId."),
    ] = None
    disabled: Annotated[
        bool,
        Field(
            description="Remove the model from the catalog: calls are refused, its price stays"
            " listed; default false. Running tasks continue."
        ),
    ] = False
    deprecated: Annotated[
        bool,
        Field(
            description="Tell in the price list that the model will be removed; default false. It"
            " still runs."
        ),
    ] = False
    routes: Annotated[
        list[Route],
        Field(
            min_length=1,
            description="Where the model runs, up to 8 places, in order of preference for tasks and"
            " moderations.",
        ),
        map_list("name", max_items=8),
    ]
    fields: Annotated[
        list[FieldRule] | None,
        Field(
            description="How the model narrows fields of its operation. Fields without an entry"
            " follow the operation."
        ),
        map_list("name", max_items=32),
    ] = None
    prices: Annotated[
        list[Price] | None,
        Field(
            max_length=16,
            json_schema_extra=ATOMIC_LIST,
            description="Prices with the times from which they are valid. A model without one is"
            " not Ready.",
        ),
    ] = None
    deadline_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=604800,
            description="Seconds from creation after which an unfinished task fails; default 3600.",
        ),
    ] = 3600
    input_token_limit: Annotated[
        int | None,
        Field(
            ge=1,
            le=100_000_000,
            description="Longest prompt of a language model, in tokens: no call reserves money for"
            " more. Absent: a call with files reserves for 1,048,576 tokens besides its"
            " bytes.",
        ),
    ] = None
    output_token_limit: Annotated[
        int,
        Field(
            ge=1,
            le=100_000_000,
            description="Longest answer of a language model, in tokens; reserved for a call that"
            " sets none. Default 8192.",
        ),
    ] = 8192
    unpriced: Annotated[
        list[Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9_.:-]+$")]] | None,
        Field(
            max_length=32,
            description="Fields and tools of LLM calls that are forwarded although providers bill"
            " them beside tokens, which the prices do not cover, e.g. service_tier,"
            " web_search, googleSearch. All others of that kind are refused.",
            json_schema_extra=SET_LIST,
        ),
    ] = None


class ModelStatus(Status):
    """Observed state of the model."""

    keyed_route: Annotated[
        KeyedRoute | None,
        Field(
            description="Route in use, if its provider declares idempotency keys: new tasks name it"
            " in `spec.request.route`."
        ),
    ] = None
    health: Annotated[
        Health | None,
        Field(description="Calls of this model in the last three minutes; absent without any."),
    ] = None


class GatewayModel(Resource):
    """A model clients may call."""

    kind_name: ClassVar[str] = "GatewayModel"
    plural: ClassVar[str] = "gatewaymodels"
    short_name: ClassVar[str] = "gwmodel"
    columns: ClassVar[list[Any]] = [
        ("Model", "string", ".spec.modelId", 0),
        ("Service", "string", ".spec.service", 0),
        ("Action", "string", ".spec.action", 0),
        *READY_COLUMNS,
        *HEALTH_COLUMNS,
        ("Provider", "string", ".spec.routes[0].providerName", 1),
        ("Disabled", "boolean", ".spec.disabled", 1),
        ("Deprecated", "boolean", ".spec.deprecated", 1),
        MESSAGE_COLUMN,
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.modelId", ".spec.service", ".spec.action"]

    spec: ModelSpec
    status: ModelStatus = Field(default_factory=ModelStatus)


class PromptSpec(Part):
    """An example for users: what to ask of which action, and what it is about."""

    title: Annotated[str, Field(min_length=1, max_length=200, description="Title for people.")]
    prompt: Annotated[
        str, Field(min_length=1, max_length=20000, description="Text of the prompt, to be reused.")
    ]
    service: Annotated[Name, Field(description="Service of the models that it is for.")]
    action: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=r"^[a-z0-9_]+$",
            description="Action that it is for, as a GatewayModel names it.",
        ),
    ]
    model_id: Annotated[
        LongName | None,
        Field(pattern=ANY_MODEL_ID, description="Model that it is for. Absent: any of the action."),
    ] = None
    category: Annotated[
        str | None, Field(min_length=1, max_length=63, description="Category, for searches.")
    ] = None
    tags: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=63)]] | None,
        Field(max_length=32, description="Words, for searches.", json_schema_extra=SET_LIST),
    ] = None
    featured: Annotated[
        bool, Field(description="Whether it is listed before others; default false.")
    ] = False


class GatewayPrompt(Resource):
    """A prompt that the MCP tool `search_prompts` finds; the same for all accounts."""

    kind_name: ClassVar[str] = "GatewayPrompt"
    plural: ClassVar[str] = "gatewayprompts"
    short_name: ClassVar[str] = "gwprompt"
    columns: ClassVar[list[Any]] = [
        ("Title", "string", ".spec.title", 0),
        ("Service", "string", ".spec.service", 0),
        ("Action", "string", ".spec.action", 0),
        ("Model", "string", ".spec.modelId", 0),
        ("Category", "string", ".spec.category", 0),
        ("Featured", "boolean", ".spec.featured", 0),
        AGE,
    ]

    spec: PromptSpec
    status: Status = Field(default_factory=Status)
