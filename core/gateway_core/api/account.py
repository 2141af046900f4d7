"""GatewayAccount, a tenant that pays, and GatewayUser, a person with roles in accounts."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway_core.api.limits import RequestsPerMinute
from gateway_core.api.resource import (
    AGE,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    REFERRED_NAME_RULE,
    Dollars,
    Micros,
    Name,
    Part,
    Resource,
    Status,
    Time,
    map_list,
)

PAID_RPM = 300
ACCOUNT_BYTES = 5_368_709_120

StorageBytes = Annotated[int, Field(ge=0, le=2**53 - 1)]


@dataclass(frozen=True, slots=True)
class AccountDefaults:
    """Default limits of accounts in this deployment (contract annex D)."""

    requests_per_minute: int = PAID_RPM
    storage_bytes: int = ACCOUNT_BYTES

    def choose_rate(self, own: int | None) -> int:
        """Paid calls per minute of an account with this `requestsPerMinute`."""
        return self.requests_per_minute if own is None else own

    def choose_storage(self, own: int | None) -> int:
        """Bytes of files of an account with this `storageBytes`."""
        return self.storage_bytes if own is None else own


class SecretKeyRef(Part):
    """One entry of a Secret in the same namespace."""

    name: Annotated[
        str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
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
        RequestsPerMinute | None,
        Field(description="Paid calls in any trailing 60 seconds; the deployment's if absent."),
    ] = None
    storage_bytes: Annotated[
        StorageBytes | None,
        Field(
            description="Bytes that its files may take, reservations too; the deployment's if"
            " absent."
        ),
    ] = None
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


class AccountStatus(Status):
    """The account's money as of the last look, and the limits in effect."""

    requests_per_minute: Annotated[
        RequestsPerMinute | None, Field(description="Paid calls a minute that it may make now.")
    ] = None
    storage_bytes: Annotated[
        StorageBytes | None, Field(description="Bytes that its files may take now.")
    ] = None

    balance_micros: Annotated[
        int | None,
        Field(ge=-(2**53) + 1, le=2**53 - 1, description="Paid in, less what was charged."),
    ] = None
    balance: Dollars = None
    charged_micros: Micros | None = None
    charged: Dollars = None


class GatewayAccount(Resource):
    """A tenant: whom calls are counted, limited and billed against."""

    kind_name: ClassVar[str] = "GatewayAccount"
    plural: ClassVar[str] = "gatewayaccounts"
    short_name: ClassVar[str] = "gwacct"
    columns: ClassVar[list[Any]] = [
        ("Display", "string", ".spec.displayName", 0),
        ("Balance", "string", ".status.balance", 0),
        *READY_COLUMNS,
        ("Charged", "string", ".status.charged", 1),
        ("Unlimited", "boolean", ".spec.unlimited", 1),
        ("Owner", "string", ".spec.owner.email", 1),
        MESSAGE_COLUMN,
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.suspended"]
    rules: ClassVar[list[dict[str, Any]]] = [REFERRED_NAME_RULE]

    spec: AccountSpec
    status: AccountStatus = Field(default_factory=AccountStatus)


Role = Literal["owner", "admin", "member", "viewer"]


class Membership(Part):
    """A role in one account."""

    account_name: Name
    role: Role


class UserSpec(Part):
    """A person as declared."""

    display_name: Annotated[str, Field(min_length=1, max_length=127)]
    email: Annotated[str, Field(min_length=3, max_length=254, pattern=r"^[^@\s]+@[^@\s]+$")]
    memberships: Annotated[list[Membership] | None, map_list("accountName", max_items=64)] = None
    suspended: Annotated[
        bool,
        Field(description="Whether all keys that they made, and their sign-in, are refused."),
    ] = False
    password_hash: Annotated[
        str | None,
        Field(
            max_length=256,
            pattern=r"^\$argon2id\$v=19\$m=[0-9]+,t=[0-9]+,p=[0-9]+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+$",
            description="Argon2id of the password; `gatewayctl users reset-password` writes it."
            " Without one the person cannot sign in by password.",
        ),
    ] = None


class GatewayUser(Resource):
    """A person who has a role in accounts."""

    kind_name: ClassVar[str] = "GatewayUser"
    plural: ClassVar[str] = "gatewayusers"
    short_name: ClassVar[str] = "gwuser"
    columns: ClassVar[list[Any]] = [
        ("Display", "string", ".spec.displayName", 0),
        ("Email", "string", ".spec.email", 0),
        ("Accounts", "string", ".spec.memberships[*].accountName", 0),
        *READY_COLUMNS,
        ("Roles", "string", ".spec.memberships[*].role", 1),
        ("Suspended", "boolean", ".spec.suspended", 1),
        MESSAGE_COLUMN,
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.email"]
    rules: ClassVar[list[dict[str, Any]]] = [REFERRED_NAME_RULE]

    spec: UserSpec
    status: Status = Field(default_factory=Status)
