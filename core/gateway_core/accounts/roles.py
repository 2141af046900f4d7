"""Authorization by role: the role matrix (contract §9.2) and the rights of keys. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from gateway_core.api.account import Role
from gateway_core.api.key import KeyClass

Refusal = Literal["wrong_credential_class", "insufficient_role"]
"""Codes of contract §1.2."""


class Act(Enum):
    """Actions: the rows of the matrix."""

    READ = "models, prices, own account, balance, tasks, files, batches"
    CREATE = "create a task, LLM call, file, upload or batch; delete, cancel"
    GOVERN = "keys and guardrails, usage"
    READ_MEMBERS = "who is a member of the account"
    APPOINT = "management keys, members, webhook secret"
    CLOSE = "delete the account, transfer its ownership"


class Grant(Enum):
    """Cells of the matrix."""

    YES = "by any credential"
    SESSION = "signed in only"
    OWN_KEYS = "signed in, their own keys only"
    NOT_OWNERS = "signed in, and not upon owners"
    NO = "never"


@dataclass(frozen=True, slots=True)
class _Row:
    owner: Grant
    admin: Grant
    member: Grant
    viewer: Grant
    management_key: Grant


_Y, _N, _S = Grant.YES, Grant.NO, Grant.SESSION
_MATRIX: Mapping[Act, _Row] = {
    # owner, admin, member, viewer, management key
    Act.READ: _Row(_Y, _Y, _Y, _Y, _N),
    Act.CREATE: _Row(_Y, _Y, _Y, _N, _N),
    Act.GOVERN: _Row(_S, _S, Grant.OWN_KEYS, _N, _Y),
    Act.READ_MEMBERS: _Row(_S, _S, _N, _N, _Y),
    Act.APPOINT: _Row(_S, Grant.NOT_OWNERS, _N, _N, _N),
    Act.CLOSE: _Row(_S, _N, _N, _N, _N),
}
_OF_STANDARD_KEYS = frozenset({Act.READ, Act.CREATE})
"""Actions of standard keys; they have no access to `/api/v1/management`."""


def act_as(key_class: KeyClass, creator: Role | None) -> Role:
    """Return the role of a key: the lesser of its class's role and its creator's current role.

    A management key is admin. A standard key is member at most, also without a `creator`: an admin
    of the cluster has declared such a key.
    """
    if key_class == "Management":
        return "admin"
    return "viewer" if creator == "viewer" else "member"


def refuse_key(act: Act, key_class: KeyClass, role: Role) -> Refusal | None:
    """Return the reason to refuse a key of this class and role; None if it is allowed."""
    is_standard = key_class == "Standard"
    if is_standard is not (act in _OF_STANDARD_KEYS):
        return "wrong_credential_class"
    row = _MATRIX[act]
    grant = getattr(row, role) if is_standard else row.management_key
    return None if grant is Grant.YES else "insufficient_role"


def refuse_session(act: Act, role: Role) -> Refusal | None:
    """Return the reason to refuse a signed-in user of this role; None if they may do it.

    `is_confined` says whether to their own keys alone.
    """
    return "insufficient_role" if find_grant(act, role) is Grant.NO else None


def is_confined(role: Role) -> bool:
    """Return whether the role governs only keys that its user has made.

    No key has a confined role where it may govern: a management key acts as an admin.
    """
    return find_grant(Act.GOVERN, role) is Grant.OWN_KEYS


def governs(role: Role) -> bool:
    """Return whether a signed-in user of this role manages all keys and grants of the account."""
    return find_grant(Act.GOVERN, role) is Grant.SESSION


def find_grant(act: Act, role: Role) -> Grant:
    """Return the cell of the matrix for a signed-in user of this role."""
    grant: Grant = getattr(_MATRIX[act], role)
    return grant
