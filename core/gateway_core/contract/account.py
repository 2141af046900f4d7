"""GatewayAccount and GatewayKey: who pays, and what opens the door.

The API keeps both in a watch-fed table; the operator shows in `Ready` whether they are usable.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway_core.contract.resource import (
    AGE,
    IMMUTABLE,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    REFERRED_NAME_RULE,
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


class SecretKeyRef(Part):
    """One entry of a Secret in the same namespace."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
    ]
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class OutgoingSecretRef(SecretKeyRef):
    """A secret that is being rotated out."""

    expiration_time: Annotated[
        Time, Field(description="Until when it still signs: 24 hours after the rotation.")
    ]


class Owner(Part):
    """The person who answers for the account."""

    name: Annotated[str, Field(min_length=1, max_length=127)]
    email: Annotated[str, Field(min_length=3, max_length=254)]


class Funds(Part):
    """Everything ever paid in, so that applying the same amount twice adds nothing."""

    paid_micros: Micros = 0
    bonus_micros: Micros = 0


class AccountSpec(Part):
    """A tenant as an admin declares it."""

    display_name: Annotated[str, Field(min_length=1, max_length=127)]
    owner: Owner
    funds: Annotated[Funds | None, Field()] = None
    unlimited: Annotated[
        bool, Field(description="Whether calls are taken whatever the balance.")
    ] = False
    suspended: Annotated[bool, Field(description="Whether all its keys are refused.")] = False
    requests_per_minute: Annotated[
        int, Field(ge=1, le=1000000, description="Paid calls in any trailing 60 seconds.")
    ] = 300
    webhook_secret_ref: Annotated[
        SecretKeyRef | None,
        Field(
            description="What callbacks are signed with: whsec_ and base64. None is sent without."
        ),
    ] = None
    previous_webhook_secret_ref: Annotated[
        OutgoingSecretRef | None,
        Field(description="Signs beside webhookSecretRef while receivers change over."),
    ] = None


class GatewayAccount(Resource):
    """A tenant: whom calls are counted, limited and billed against."""

    kind_name: ClassVar[str] = "GatewayAccount"
    plural: ClassVar[str] = "gatewayaccounts"
    short_name: ClassVar[str] = "gwacct"
    columns: ClassVar[list[Any]] = [
        ("Display", "string", ".spec.displayName", 0),
        *READY_COLUMNS,
        ("Unlimited", "boolean", ".spec.unlimited", 1),
        ("Owner", "string", ".spec.owner.email", 1),
        MESSAGE_COLUMN,
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.suspended"]
    rules: ClassVar[list[dict[str, Any]]] = [REFERRED_NAME_RULE]

    spec: AccountSpec
    status: Status = Field(default_factory=Status)


class KeyToken(Part):
    """A token that opens this key; there are two while one is rotated out."""

    id: Annotated[str, Field(max_length=8, pattern=r"^[a-z2-7]{8}$")]
    digest: Annotated[Sha256, Field(description="Hex HMAC-SHA256 of the key under the pepper.")]
    pepper_version: Annotated[int, Field(ge=1, le=1000)] = 1
    hint: Annotated[str, Field(max_length=16)]
    expiration_time: Time | None = None


class KeySpec(Part):
    """A key as declared; its plaintext is nowhere in it."""

    account_name: Annotated[Name, Field(json_schema_extra=IMMUTABLE)]
    class_: Annotated[
        Literal["Standard", "Management"],
        Field(alias="class", json_schema_extra=IMMUTABLE),
    ] = "Standard"
    display_name: Annotated[str, Field(min_length=1, max_length=100)]
    tokens: Annotated[list[KeyToken], Field(min_length=1), map_list("id", max_items=2)]
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


class GatewayKey(Resource):
    """An API key of one account; only digests of its tokens are kept."""

    kind_name: ClassVar[str] = "GatewayKey"
    plural: ClassVar[str] = "gatewaykeys"
    short_name: ClassVar[str] = "gwkey"
    columns: ClassVar[list[Any]] = [
        ("Account", "string", ".spec.accountName", 0),
        ("Class", "string", ".spec.class", 0),
        ("Hint", "string", ".spec.tokens[0].hint", 0),
        *READY_COLUMNS,
        ("Display", "string", ".spec.displayName", 1),
        ("Expires", "string", ".spec.expirationTime", 1),
        MESSAGE_COLUMN,
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.accountName", ".spec.class", ".spec.revoked"]

    spec: KeySpec
    status: Status = Field(default_factory=Status)
