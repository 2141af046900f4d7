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
        str,
        Field(
            min_length=1,
            max_length=253,
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
            description="Name of the Secret.",
        ),
    ]
    key: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            pattern=r"^[-._a-zA-Z0-9]+$",
            description="Key in the Secret's `data`.",
        ),
    ]


class OutgoingSecretRef(SecretKeyRef):
    """A secret that is being rotated out."""

    expiration_time: Annotated[
        Time, Field(description="When it stops signing: 24 hours after the rotation.")
    ]


class Owner(Part):
    """The person who answers for the account."""

    name: Annotated[
        str,
        Field(
            min_length=1, max_length=127, description="Name of the person. Only for information."
        ),
    ]
    email: Annotated[
        str,
        Field(
            min_length=3,
            max_length=254,
            description="E-mail address of the person, for information: nothing is sent to it.",
        ),
    ]


class Funds(Part):
    """Everything ever paid in, so that applying the same amount twice adds nothing."""

    paid_micros: Annotated[
        Micros,
        Field(
            description="Money paid in since the account was made, in micro-dollars (1,000,000 = 1"
            " dollar); default 0. Raise it to add funds."
        ),
    ] = 0
    bonus_micros: Annotated[
        Micros,
        Field(
            description="Money given free of charge since the account was made, in micro-dollars;"
            " spent before paid money; default 0."
        ),
    ] = 0


class AccountSpec(Part):
    """A tenant as an admin declares it."""

    display_name: Annotated[
        str, Field(min_length=1, max_length=127, description="Name of the account for people.")
    ]
    owner: Owner
    funds: Annotated[Funds | None, Field()] = None
    unlimited: Annotated[
        bool,
        Field(
            description="Accept paid calls whatever the balance is; default false. Charges are"
            " still recorded."
        ),
    ] = False
    suspended: Annotated[
        bool,
        Field(
            description="Refuse all keys of the account with 401; default false. Running tasks"
            " continue."
        ),
    ] = False
    requests_per_minute: Annotated[
        RequestsPerMinute | None,
        Field(
            description="Paid calls that the account may make in any 60 seconds; further ones get"
            " 429. Absent: the deployment's default (300)."
        ),
    ] = None
    storage_bytes: Annotated[
        StorageBytes | None,
        Field(
            description="Bytes that the account's files and open Uploads may take together. Absent:"
            " the deployment's default (5 GiB)."
        ),
    ] = None
    webhook_secret_ref: Annotated[
        SecretKeyRef | None,
        Field(
            description="Secret that signs callbacks, in the form `whsec_` and base64. Absent:"
            " callbacks are not signed."
        ),
    ] = None
    previous_webhook_secret_ref: Annotated[
        OutgoingSecretRef | None,
        Field(
            description="Earlier secret, which signs beside webhookSecretRef during a rotation so"
            " that receivers can change over."
        ),
    ] = None


class AccountStatus(Status):
    """The account's money as of the last look, and the limits in effect."""

    requests_per_minute: Annotated[
        RequestsPerMinute | None,
        Field(
            description="Paid calls that the account may make in any 60 seconds, default included."
        ),
    ] = None
    storage_bytes: Annotated[
        StorageBytes | None,
        Field(description="Bytes that the account's files may take, default included."),
    ] = None

    balance_micros: Annotated[
        int | None,
        Field(
            ge=-(2**53) + 1,
            le=2**53 - 1,
            description="Funds less charges, in micro-dollars; negative if a last call cost more"
            " than was left. Seconds old.",
        ),
    ] = None
    balance: Annotated[Dollars, Field(description="The balance in dollars.")] = None
    charged_micros: Annotated[
        Micros | None,
        Field(description="All charges since the account was made, in micro-dollars."),
    ] = None
    charged: Annotated[Dollars, Field(description="All charges in dollars.")] = None


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

    account_name: Annotated[Name, Field(description="Name of the GatewayAccount.")]
    role: Annotated[
        Role,
        Field(
            description="Role in that account. viewer reads; member also calls models and has own"
            " keys; admin also manages all keys, guardrails and members; owner also owners."
        ),
    ]


class SignOnIdentity(Part):
    """Who a person is at the provider of single sign-on."""

    issuer: Annotated[
        str, Field(min_length=1, max_length=512, description="Issuer identifier of the provider.")
    ]
    subject: Annotated[
        str, Field(min_length=1, max_length=255, description="The provider's `sub` for the person.")
    ]


class PasswordLink(Part):
    """A link with which the person chooses a password, once."""

    digest: Annotated[
        str,
        Field(
            max_length=64,
            pattern=r"^[0-9a-f]{64}$",
            description="SHA-256 of the link's random token.",
        ),
    ]
    expiration_time: Annotated[
        Time, Field(description="When the link stops working: 72 hours after it was made.")
    ]
    created_by: Annotated[
        Name | None,
        Field(
            description="The GatewayUser who made it, and who must still be allowed to when it is"
            " used. Absent: an administrator of the cluster."
        ),
    ] = None


class UserSpec(Part):
    """A person as declared."""

    display_name: Annotated[
        str, Field(min_length=1, max_length=127, description="Name of the person for people.")
    ]
    email: Annotated[
        str,
        Field(
            min_length=3,
            max_length=254,
            pattern=r"^[^@\s]+@[^@\s]+$",
            description="E-mail address with which the person signs in; single sign-on finds the"
            " user by it.",
        ),
    ]
    memberships: Annotated[
        list[Membership] | None,
        Field(description="Accounts in which the person has a role, at most 64."),
        map_list("accountName", max_items=64),
    ] = None
    suspended: Annotated[
        bool,
        Field(
            description="Refuse the person's sign-in and all keys that the person made; default"
            " false."
        ),
    ] = False
    password_hash: Annotated[
        str | None,
        Field(
            max_length=256,
            pattern=r"^\$argon2id\$v=19\$m=[0-9]+,t=[0-9]+,p=[0-9]+(,keyid=[A-Za-z0-9+/]{1,11})?"
            r"\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+$",
            description="Argon2id hash of the password, written by the API process or by"
            " `gatewayctl users reset-password`. `keyid`: the person chose the password, and it"
            " was keyed with the installation's id-key first. Absent: the person cannot sign in"
            " with a password.",
        ),
    ] = None
    password_link: Annotated[
        PasswordLink | None,
        Field(
            description="The one link that sets a password now, written for an invitation or a"
            " recovery; a new one replaces it, and its use removes it."
        ),
    ] = None
    single_sign_on: Annotated[
        SignOnIdentity | None,
        Field(
            description="Written at the first single sign-on, found by email; from then on this"
            " identity alone comes in. Remove it to let another one be bound."
        ),
    ] = None


class UserStatus(Status):
    """State of a user, as the operator has seen it."""

    memberships: Annotated[
        list[Membership] | None,
        Field(
            description="The memberships that the operator has seen last; it notes for the audit"
            " which of them another program has removed since."
        ),
        map_list("accountName", max_items=64),
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
    status: UserStatus = Field(default_factory=UserStatus)
