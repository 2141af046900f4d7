"""The role matrix, row by row (contract §9.2)."""

import pytest

from gateway_core.accounts.roles import Act, Grant, act_as, find_grant, refuse_key
from gateway_core.api.account import Role
from gateway_core.api.key import KeyClass

PEOPLE: tuple[Role, ...] = ("owner", "admin", "member", "viewer")
WRONG, LOW = "wrong_credential_class", "insufficient_role"

SIGNED_IN = {
    Act.READ: ("YES", "YES", "YES", "YES"),
    Act.CREATE: ("YES", "YES", "YES", "NO"),
    Act.GOVERN: ("SESSION", "SESSION", "OWN_KEYS", "NO"),
    Act.READ_MEMBERS: ("SESSION", "SESSION", "NO", "NO"),
    Act.APPOINT: ("SESSION", "NOT_OWNERS", "NO", "NO"),
    Act.CLOSE: ("SESSION", "NO", "NO", "NO"),
}
BY_KEY = {
    # a standard key of owner, admin, member and viewer, and a management key
    Act.READ: (None, None, None, None, WRONG),
    Act.CREATE: (None, None, None, LOW, WRONG),
    Act.GOVERN: (WRONG, WRONG, WRONG, WRONG, None),
    Act.READ_MEMBERS: (WRONG, WRONG, WRONG, WRONG, None),
    Act.APPOINT: (WRONG, WRONG, WRONG, WRONG, LOW),
    Act.CLOSE: (WRONG, WRONG, WRONG, WRONG, LOW),
}


@pytest.mark.parametrize("act", Act)
def test_grants_of_signed_in_users_follow_their_role(act: Act) -> None:
    assert [find_grant(act, role) for role in PEOPLE] == [Grant[word] for word in SIGNED_IN[act]]


@pytest.mark.parametrize("act", Act)
def test_refusals_of_keys_follow_class_and_role(act: Act) -> None:
    *standard, management = BY_KEY[act]
    found = [refuse_key(act, "Standard", act_as("Standard", role)) for role in PEOPLE]
    assert found == standard
    for role in (*PEOPLE, None):
        assert refuse_key(act, "Management", act_as("Management", role)) == management


@pytest.mark.parametrize(
    ("key_class", "creator", "role"),
    [
        ("Standard", "owner", "member"),
        ("Standard", "admin", "member"),
        ("Standard", "member", "member"),
        ("Standard", "viewer", "viewer"),
        ("Standard", None, "member"),
        ("Management", "owner", "admin"),
        ("Management", "viewer", "admin"),
        ("Management", None, "admin"),
    ],
)
def test_key_acts_with_the_least_of_class_and_creator(
    key_class: KeyClass, creator: Role | None, role: Role
) -> None:
    assert act_as(key_class, creator) == role
