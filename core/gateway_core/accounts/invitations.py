"""Invitations of people to an account, and links with which members choose a new password."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from gateway_core.accounts.authentication import Principal
from gateway_core.accounts.changes import note_change
from gateway_core.accounts.password_links import make_link, may_link
from gateway_core.accounts.records import UserRecord, project_user
from gateway_core.accounts.roles import Act, Grant, find_grant
from gateway_core.accounts.sign_in import USERS, UserIndex, fold_email
from gateway_core.accounts.throttle import Allowance, Throttle
from gateway_core.api.account import GatewayUser, Role
from gateway_core.api.errors import Conflict, Forbidden, NotFound
from gateway_core.api.resource import Object, skeleton
from gateway_core.failpoints import NO_FAILPOINTS, Failpoints
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.kube.informer import Cache
from gateway_core.kube.repository import writing

INVITATION_ALLOWANCES: Mapping[str, Allowance] = {
    "invite-account": Allowance(100, 86_400),
    "invite-email": Allowance(5, 86_400),
}
"""Invitations and links of an account in a day, and those for one email: each may send a mail."""
MAX_MEMBERSHIPS = 64

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Invitation:
    """A person who was invited, or may choose a new password. `token` is that of their link.

    It is empty where the person needs none: they sign in as before.
    """

    user: UserRecord
    token: str = ""


class Invitations:
    """Makes users, memberships and links for the owners and admins of accounts."""

    def __init__(
        self,
        kube: KubernetesClient,
        users: Cache[UserRecord],
        throttle: Throttle,
        failpoints: Failpoints = NO_FAILPOINTS,
    ) -> None:
        self._kube = kube
        self._users = users
        self._users_by = UserIndex(users)
        self._throttle = throttle
        self._failpoints = failpoints

    async def invite(self, caller: Principal, email: str, name: str, role: Role) -> Invitation:
        """Make the person a member of the caller's account; the link to choose a password.

        A person who has not chosen one yet gets a new link. One who is a user of accounts that the
        caller does not own is refused: the person who invited them there may know their password.
        Raises Forbidden, Conflict, TooManyCalls, Unavailable.
        """
        _check_role(caller, role)
        await self._count(caller, email)
        known = self._users_by.list_of(email)
        if len(known) > 1:
            raise Conflict(f"Several users have the email address {email}.")
        if known:
            return await self._readmit(caller, known[0].name, role)
        # of the email, so that concurrent invitations make one user
        user = f"invited-{hashlib.sha256(fold_email(email).encode()).hexdigest()[:26]}"
        account, maker = caller.account.name, _name_maker(caller)
        link = make_link(user, CLOCK.now(), maker)
        spec = {
            "displayName": name,
            "email": email.strip(),
            "memberships": [{"accountName": account, "role": role}],
            "passwordLink": link.field,
        }
        obj = skeleton(GatewayUser, user) | {"spec": spec}
        text = f"invited as {role}"
        obj["metadata"]["annotations"] = note_change(
            None, f"user/{maker}", text, CLOCK.now(), account
        )
        self._failpoints.reach("before-link")
        async with writing(USERS, user):
            made, is_new = await self._kube.create_or_get(USERS.plural, obj)
        self._failpoints.reach("after-link")
        self._users.upsert(made)
        if not is_new and made["spec"].get("passwordLink") != link.field:
            return await self._readmit(caller, user, role)
        _log.info("user invited", user=user, account=account, by=maker)
        return Invitation(project_user(made), link.token)

    async def renew(self, caller: Principal, user_id: str) -> Invitation:
        """Make a new link for a member: for an invitation, or for a forgotten password.

        Raises NotFound, Forbidden, TooManyCalls, Unavailable.
        """
        member = find_member(self._users, caller.account.name, user_id)
        await self._count(caller, member.email)
        link = make_link(member.name, CLOCK.now(), _name_maker(caller))

        def decide(obj: Object) -> Mapping[str, Any] | None:
            if obj["spec"].get("passwordLink") == link.field:
                return None
            _check_link(caller, project_user(obj))
            text = "link for a new password made"
            return _patch(obj, caller, text, {"passwordLink": link.field})

        changed = await self._update(member.name, decide)
        _log.info("password link made", user=member.name, by=_name_maker(caller))
        return Invitation(changed, link.token)

    async def _readmit(self, caller: Principal, name: str, role: Role) -> Invitation:
        """Invite a person who is a user already."""
        account, is_written = caller.account.name, False
        link = make_link(name, CLOCK.now(), _name_maker(caller))

        def decide(obj: Object) -> Mapping[str, Any] | None:
            nonlocal is_written
            user, spec = project_user(obj), obj["spec"]
            present = user.find_role(account)
            if is_written and present is not None:
                # the answer to this very write was lost
                return None
            is_settled = user.password_hash is not None or user.identity is not None
            if present is not None and is_settled:
                text = f"This person is a member already: {user.display_name} ({user.email})."
                raise Conflict(text, param="email")
            _check_admission(caller, user)
            changes: dict[str, Any] = {}
            if present is None:
                others = spec.get("memberships") or []
                if len(others) >= MAX_MEMBERSHIPS:
                    raise Conflict(f"The person is a member of {MAX_MEMBERSHIPS} accounts.")
                changes["memberships"] = [*others, {"accountName": account, "role": role}]
            if user.identity is None and (not is_settled or not user.roles):
                # who invited them to an account that they have left may know the old password
                changes |= {"passwordLink": link.field, "passwordHash": None}
            is_written = True
            return _patch(obj, caller, f"invited as {present or role}", changes)

        changed = await self._update(name, decide)
        _log.info("user invited", user=name, account=account, by=_name_maker(caller))
        issued = changed.password_link
        has_link = issued is not None and issued.digest == link.field["digest"]
        return Invitation(changed, link.token if has_link else "")

    async def _count(self, caller: Principal, email: str) -> None:
        await self._throttle.count("invite-account", caller.account.name)
        await self._throttle.count("invite-email", fold_email(email))

    async def _update(
        self, name: str, decide: Callable[[Object], Mapping[str, Any] | None]
    ) -> UserRecord:
        async def read() -> Object:
            try:
                return await self._kube.get(USERS.plural, name)
            except ObjectNotFound:
                raise NotFound("Member not found.") from None

        self._failpoints.reach("before-link")
        async with writing(USERS, name):
            changed = await self._kube.update(USERS.plural, read, decide)
        self._failpoints.reach("after-link")
        self._users.upsert(changed)
        return project_user(changed)


def find_member(users: Cache[UserRecord], account: str, user_id: str) -> UserRecord:
    """Return the member of the account with this id of the REST operations. NotFound."""
    for _, user in [*users.items()]:
        if str(user.id) == user_id and user.find_role(account) is not None:
            return user
    raise NotFound("Member not found.")


def _name_maker(caller: Principal) -> str:
    """Return the name of the signed-in user. Forbidden for a key."""
    if caller.creator is None:
        raise Forbidden("Only a person who has signed in may do this.", code="insufficient_role")
    return caller.creator.name


def _check_role(caller: Principal, role: Role) -> None:
    """Raise Forbidden where the caller may not make members of this role."""
    grant = find_grant(Act.APPOINT, caller.role)
    if grant is Grant.NO or (grant is Grant.NOT_OWNERS and role == "owner"):
        raise Forbidden("Only an owner may do this.", code="insufficient_role")


def _check_link(caller: Principal, user: UserRecord) -> None:
    """Raise Forbidden or Conflict where the caller may not make a link for the member."""
    maker = caller.creator
    if maker is None or maker.name == user.name:
        raise Forbidden("Change your own password on the settings page.")
    if user.identity is not None and user.password_hash is None:
        raise Conflict("This person signs in by single sign-on, and has no password.")
    has_password = user.password_hash is not None
    if user.find_role(caller.account.name) is None or user.suspended:
        raise Conflict("This person is suspended, or is no member any more.")
    if not may_link(maker.roles, user.roles, has_password=has_password):
        raise Forbidden(
            "A link opens all accounts of a person. You may make one for people all of whose"
            " accounts you own; for others an administrator of the installation does.",
            code="insufficient_role",
        )


def _check_admission(caller: Principal, user: UserRecord) -> None:
    """Raise Conflict where somebody else may know the password of a user who is invited."""
    if user.suspended:
        raise Conflict("This person is suspended. An administrator of the installation decides.")
    is_trusted = user.identity is not None and user.password_hash is None
    is_settled = user.password_hash is not None or user.identity is not None
    roles = () if caller.creator is None else caller.creator.roles
    if user.roles and not is_trusted and not may_link(roles, user.roles, has_password=is_settled):
        raise Conflict(
            "This email address belongs to a user of other accounts. An administrator of the"
            " installation can add the person: gatewayctl users grant."
        )


def _patch(
    obj: Object, caller: Principal, text: str, changes: Mapping[str, Any]
) -> Mapping[str, Any]:
    by = f"user/{_name_maker(caller)}"
    note = note_change(obj, by, text, CLOCK.now(), caller.account.name)
    return {"metadata": {"annotations": note}, "spec": {**changes}}
