"""GatewayGuardrail: a shared budget and restrictions of some keys of an account.

A charge counts for the guardrails that its key had at admission, and continues to: removing a key
returns nothing to the budget.
"""

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from gateway_core.api.limits import CallLimits, Entries, SpentStatus, bound_size
from gateway_core.api.resource import (
    AGE,
    IMMUTABLE,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    SET_LIST,
    Name,
    Resource,
    checked,
    rule,
)

GUARDRAIL_PREFIX = "grd"
MOST_KEYS = 1000

GUARDRAIL_NAME_RULE = rule(
    "self.metadata.name.matches('^grd-[a-z0-9-]{0,57}[a-z0-9]$')",
    "metadata.name must be `grd-` and 1 to 58 lowercase letters, digits or dashes",
)


class GuardrailSpec(CallLimits):
    """A guardrail as declared. All that restricts a call restricts it together."""

    model_config = ConfigDict(
        json_schema_extra=checked(
            bound_size("allowedModels", "deniedModels", "allowedProviders", "deniedProviders")
        )
    )

    account_name: Annotated[
        Name,
        Field(
            json_schema_extra=IMMUTABLE,
            description="Name of the GatewayAccount that it belongs to; cannot be changed.",
        ),
    ]
    display_name: Annotated[
        str, Field(min_length=1, max_length=100, description="Name of the guardrail for people.")
    ]
    description: Annotated[str | None, Field(max_length=1000, description="Note for people.")] = (
        None
    )
    denied_models: Annotated[
        Entries | None,
        Field(
            description="Models that may not be called, whatever allowedModels says: exact ids, or"
            " prefixes that end in *."
        ),
    ] = None
    denied_providers: Annotated[
        Entries | None,
        Field(
            description="Services that may not be called, whatever allowedProviders says: exact, or"
            " prefixes that end in *."
        ),
    ] = None
    key_names: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=63)]] | None,
        Field(
            max_length=MOST_KEYS,
            description="Names of the GatewayKeys that it restricts; names without a key have no"
            " effect.",
            json_schema_extra=SET_LIST,
        ),
    ] = None


class GatewayGuardrail(Resource):
    """Limits that some keys of an account share."""

    kind_name: ClassVar[str] = "GatewayGuardrail"
    plural: ClassVar[str] = "gatewayguardrails"
    short_name: ClassVar[str] = "gwguard"
    columns: ClassVar[list[Any]] = [
        ("Account", "string", ".spec.accountName", 0),
        ("Display", "string", ".spec.displayName", 0),
        ("Used", "string", ".status.used", 0),
        ("Window", "string", ".spec.limit.window", 0),
        *READY_COLUMNS,
        ("Limit", "string", ".status.limit", 1),
        ("Resets", "string", ".status.resetTime", 1),
        MESSAGE_COLUMN,
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.accountName"]
    rules: ClassVar[list[dict[str, Any]]] = [GUARDRAIL_NAME_RULE]

    spec: GuardrailSpec
    status: SpentStatus = Field(default_factory=SpentStatus)
