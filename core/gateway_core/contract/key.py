"""GatewayKey: what opens the door for one account, and how far.

Only digests of its tokens are kept. The API makes keys with their tokens; one that is declared with
`secretName` gets its token from the operator, which writes the plaintext into that Secret. The API
keeps all keys in a watch-fed table.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from gateway_core.contract.limits import Entries, RequestsPerMinute, SpendLimit, bound_size
from gateway_core.contract.resource import (
    AGE,
    IMMUTABLE,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    Micros,
    Name,
    Part,
    Resource,
    Sha256,
    Status,
    Time,
    map_list,
    rule,
)

KEY_PREFIX = "key"
MOST_METADATA = 16
MOST_REVOKED = 1000
"""Revoked keys that are kept of one account; the operator removes those revoked first."""
MOST_OVERLAP_SECONDS = 604_800

KEY_NAME_RULE = rule(
    "self.metadata.name.matches('^key-[a-z0-9-]{0,57}[a-z0-9]$')",
    "metadata.name must be `key-` and 1 to 58 lowercase letters, digits or dashes",
)


class KeyToken(Part):
    """A token that opens this key; there are two while one is rotated out."""

    id: Annotated[str, Field(max_length=8, pattern=r"^[a-z2-7]{8}$")]
    digest: Annotated[Sha256, Field(description="Hex HMAC-SHA256 of the key under the pepper.")]
    pepper_version: Annotated[int, Field(ge=1, le=1000)] = 1
    hint: Annotated[str, Field(max_length=16)]
    expiration_time: Time | None = None


class KeySpec(Part):
    """A key as declared; its plaintext is nowhere in it."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "has(self.tokens) != has(self.secretName)",
                    "exactly one of `tokens` and `secretName` must be specified",
                ),
                rule(
                    "has(oldSelf.secretName) == has(self.secretName)",
                    "a key stays with `tokens` or with `secretName`",
                ),
                bound_size("allowedModels", "allowedProviders", notes="metadata"),
            ]
        }
    )

    account_name: Annotated[Name, Field(json_schema_extra=IMMUTABLE)]
    class_: Annotated[
        Literal["Standard", "Management"],
        Field(alias="class", json_schema_extra=IMMUTABLE),
    ] = "Standard"
    display_name: Annotated[str, Field(min_length=1, max_length=100)]
    created_by: Annotated[
        Name | None,
        Field(
            description="The GatewayUser who made it and with whose role it acts; without one it"
            " acts as a member.",
            json_schema_extra=IMMUTABLE,
        ),
    ] = None
    tokens: Annotated[list[KeyToken] | None, Field(min_length=1), map_list("id", max_items=2)] = (
        None
    )
    secret_name: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=253,
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
            description="The Secret into which the operator writes the key, as `api-key`.",
        ),
    ] = None
    rotations: Annotated[
        int,
        Field(
            ge=0,
            le=1000000,
            description="Raise it to have the operator write a new key into the Secret.",
            json_schema_extra={
                "x-kubernetes-validations": [rule("self >= oldSelf", "may only be raised")]
            },
        ),
    ] = 0
    overlap_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=MOST_OVERLAP_SECONDS,
            description="How long the old one opens after a rotation by the operator.",
        ),
    ] = 0
    disabled: bool = False
    revoked: Annotated[
        bool,
        Field(
            json_schema_extra={
                "x-kubernetes-validations": [
                    rule("self || !oldSelf", "may not be changed back once true")
                ]
            }
        ),
    ] = False
    expiration_time: Time | None = None
    limit: SpendLimit | None = None
    requests_per_minute: RequestsPerMinute | None = None
    allowed_models: Entries | None = None
    allowed_providers: Annotated[
        Entries | None, Field(description="Provider segments of the REST paths.")
    ] = None
    metadata: Annotated[
        dict[str, Annotated[str, Field(max_length=512)]] | None,
        Field(
            max_length=MOST_METADATA,
            description="The client's own notes.",
            json_schema_extra={
                "x-kubernetes-validations": [
                    rule("self.all(name, size(name) <= 64)", "names have at most 64 characters")
                ]
            },
        ),
    ] = None


class KeyStatus(Status):
    """The operator's tokens of a declared key, and what the key has spent as of the last look."""

    tokens: Annotated[list[KeyToken] | None, map_list("id", max_items=2)] = None
    rotations: Annotated[
        int | None, Field(ge=0, le=1000000, description="How far spec.rotations was followed.")
    ] = None
    secret_name: Annotated[str | None, Field(max_length=253)] = None
    used_micros: Annotated[
        Micros | None, Field(description="Spent in the limit's window, else ever.")
    ] = None
    used: Annotated[str | None, Field(max_length=32, description="The same in dollars.")] = None
    reset_time: Time | None = None
    last_used_time: Time | None = None


class GatewayKey(Resource):
    """An API key of one account; only digests of its tokens are kept."""

    kind_name: ClassVar[str] = "GatewayKey"
    plural: ClassVar[str] = "gatewaykeys"
    short_name: ClassVar[str] = "gwkey"
    columns: ClassVar[list[Any]] = [
        ("Account", "string", ".spec.accountName", 0),
        ("Class", "string", ".spec.class", 0),
        ("Hint", "string", ".spec.tokens[0].hint", 0),
        ("Used", "string", ".status.used", 0),
        ("Window", "string", ".spec.limit.window", 0),
        *READY_COLUMNS,
        ("Display", "string", ".spec.displayName", 1),
        ("Creator", "string", ".spec.createdBy", 1),
        ("Limit", "integer", ".spec.limit.micros", 1),
        ("LastUsed", "date", ".status.lastUsedTime", 1),
        ("Expires", "string", ".spec.expirationTime", 1),
        MESSAGE_COLUMN,
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.accountName", ".spec.class", ".spec.revoked"]

    rules: ClassVar[list[dict[str, Any]]] = [KEY_NAME_RULE]

    spec: KeySpec
    status: KeyStatus = Field(default_factory=KeyStatus)
