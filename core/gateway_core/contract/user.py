"""GatewayUser: a person, and what they are in which account.

A key acts with the present role of the user who made it; whoever is no member any more opens
nothing (contract §9.2).
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway_core.contract.resource import (
    AGE,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    REFERRED_NAME_RULE,
    Name,
    Part,
    Resource,
    Status,
    map_list,
)

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
        bool, Field(description="Whether all keys that they made are refused.")
    ] = False


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
