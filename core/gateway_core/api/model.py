"""GatewayModel: a model that clients may call, its routes, field rules and price.

The service and action segments of REST paths come from these objects alone.
"""

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from gateway_core.api.resource import (
    AGE,
    ATOMIC_LIST,
    HEALTH_COLUMNS,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    SET_LIST,
    Health,
    LongName,
    Micros,
    Name,
    Part,
    Resource,
    Status,
    Time,
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

    name: Name
    provider_name: Name
    upstream_model: Annotated[LongName, Field(description="What the provider calls the model.")]
    priority: Annotated[
        int, Field(ge=0, le=100, description="LLM calls: lower ones are preferred.")
    ] = 0
    weight: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="LLM calls: share among routes of one priority; 0 only as a fallback.",
        ),
    ] = 1


class KeyedRoute(Part):
    """A provider that honours idempotency keys, and what it calls the model."""

    provider_name: Name
    upstream_model: LongName


class FieldRule(Part):
    """How the model narrows one field of its operation; what it leaves open stays."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9_]+$")]
    supported: Annotated[bool, Field(description="False refuses the field altogether.")] = True
    allowed: Annotated[
        list[Annotated[str, Field(max_length=127)]] | None,
        Field(
            min_length=1,
            max_length=64,
            description="Values of a string field that the model takes.",
            json_schema_extra=SET_LIST,
        ),
    ] = None
    minimum: Annotated[int | None, Field(ge=-(2**31), le=2**31 - 1)] = None
    maximum: Annotated[int | None, Field(ge=-(2**31), le=2**31 - 1)] = None
    max_items: Annotated[int | None, Field(ge=0, le=1000)] = None
    max_length: Annotated[int | None, Field(ge=1, le=1000000)] = None
    default: Annotated[
        str | None,
        Field(max_length=1024, description='The model\'s own default as JSON, e.g. `"1080p"`.'),
    ] = None


class SecondPrice(Part):
    """Price of a second of output."""

    resolution: Annotated[
        str, Field(max_length=63, description="Output resolution, or * for every other one.")
    ] = "*"
    micros: Micros


class Price(Part):
    """What a call costs from `effectiveTime` on: the sum of all that is given.

    Tokens are priced by the million. Those read from the provider's cache cost `cachedPerMillion`
    where it is given, else what others of the input do.
    """

    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                "has(self.perCallMicros) || has(self.perSecond) || has(self.perImageMicros)"
                " || has(self.inputPerMillionMicros) || has(self.outputPerMillionMicros)",
                "at least one of `perCallMicros`, `perSecond`, `perImageMicros`,"
                " `inputPerMillionMicros` and `outputPerMillionMicros` must be specified",
            )
        )
    )

    effective_time: Annotated[Time | None, Field(description="Absent: since always.")] = None
    per_call_micros: Micros | None = None
    per_second: Annotated[
        list[SecondPrice] | None, Field(min_length=1), map_list("resolution", max_items=32)
    ] = None
    per_image_micros: Micros | None = None
    input_per_million_micros: Micros | None = None
    output_per_million_micros: Micros | None = None
    cached_per_million_micros: Micros | None = None


class ModelSpec(Part):
    """A model of the catalog."""

    model_id: Annotated[LongName, Field(pattern=ANY_MODEL_ID, description="Id on the wire.")]
    service: Annotated[
        Name,
        Field(
            description="Provider segment of the REST path.",
            json_schema_extra=checked(
                rule(f"!(self in {list(RESERVED_SERVICES)})", "must not be a reserved segment")
            ),
        ),
    ]
    action: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9_]+$")]
    display_name: Annotated[str | None, Field(max_length=127)] = None
    disabled: Annotated[
        bool, Field(description="Takes the model out of the catalog; its price is still listed.")
    ] = False
    deprecated: Annotated[
        bool, Field(description="Tells in the price list that the model will go; it still runs.")
    ] = False
    routes: Annotated[list[Route], Field(min_length=1), map_list("name", max_items=8)]
    fields: Annotated[list[FieldRule] | None, map_list("name", max_items=32)] = None
    prices: Annotated[list[Price] | None, Field(max_length=16, json_schema_extra=ATOMIC_LIST)] = (
        None
    )
    deadline_seconds: Annotated[
        int, Field(ge=1, le=604800, description="Time after which a task of it fails.")
    ] = 3600
    input_token_limit: Annotated[
        int | None,
        Field(
            ge=1,
            le=100_000_000,
            description="Longest prompt of an LLM that its providers take, in tokens: no call"
            " reserves more. Without it, one with files reserves 1,048,576 besides its bytes.",
        ),
    ] = None
    output_token_limit: Annotated[
        int,
        Field(
            ge=1,
            le=100_000_000,
            description="Longest answer of an LLM, in tokens: reserved for a call that sets none.",
        ),
    ] = 8192
    unpriced: Annotated[
        list[Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9_.:-]+$")]] | None,
        Field(
            max_length=32,
            description="Fields and tools of LLM calls that are forwarded though providers bill"
            " them beyond tokens, which the prices do not cover, e.g. service_tier, web_search,"
            " googleSearch. All others of that kind are refused.",
            json_schema_extra=SET_LIST,
        ),
    ] = None


class ModelStatus(Status):
    """Observed state of the model."""

    keyed_route: Annotated[
        KeyedRoute | None,
        Field(
            description="The route that is taken at present, if its provider declares idempotency"
            " keys: new tasks name it in `spec.request.route`."
        ),
    ] = None
    health: Health | None = None


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
