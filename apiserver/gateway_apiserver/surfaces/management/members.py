"""`/members`: users with a role in the account. A management key can only read them (§9.2).

The signed-in owner changes roles in the console; an admin does so too, but not upon owners.
"""

from collections.abc import Mapping
from typing import Any

import structlog

from gateway_apiserver.surfaces.management.changes import name_caller
from gateway_apiserver.surfaces.management.requests import ListQuery
from gateway_apiserver.surfaces.management.responses import Member, render_member
from gateway_apiserver.surfaces.models import Page, Request
from gateway_core.accounts.authentication import Principal
from gateway_core.accounts.changes import REMOVED, note_change
from gateway_core.accounts.invitations import find_member
from gateway_core.accounts.records import UserRecord, project_user
from gateway_core.accounts.roles import Act, Grant, find_grant
from gateway_core.accounts.sign_in import USERS
from gateway_core.api.account import Role
from gateway_core.api.errors import Conflict, Forbidden, NotFound
from gateway_core.api.resource import Object
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import take_page
from gateway_core.kube.repository import writing

_log = structlog.get_logger(__name__)


class RoleChange(Request):
    """The new role of a member."""

    role: Role


class MemberService:
    """Lists and changes members."""

    def __init__(self, users: Cache[UserRecord], kube: KubernetesClient) -> None:
        self._users = users
        self._kube = kube

    def list_page(self, account: str, query: ListQuery) -> Page[Member]:
        """Return a page of the account's members, from the informer of users."""
        members: dict[str, tuple[UserRecord, Role]] = {
            str(user.id): (user, role)
            for _, user in [*self._users.items()]
            if (role := user.find_role(account)) is not None
        }
        after = None
        if query.after is not None:
            if query.after not in members:
                raise NotFound("Member not found.")
            after = _find_position(members[query.after])
        page, more = take_page(
            [*members.values()], _find_position, after=after, limit=query.limit, order=query.order
        )
        return Page[Member].of([render_member(user, role) for user, role in page], has_more=more)

    async def change(self, caller: Principal, user_id: str, role: Role) -> Member:
        """Change the role of a member; the last owner stays one."""
        return render_member(await self._change(caller, user_id, role), role)

    async def remove(self, caller: Principal, user_id: str) -> None:
        """Take a member out of the account, with their keys there; the last owner stays."""
        await self._change(caller, user_id, None)

    async def _change(self, caller: Principal, user_id: str, role: Role | None) -> UserRecord:
        account = caller.account.name
        is_written = False
        member = find_member(self._users, account, user_id)

        async def read() -> Object:
            return await self._kube.get(USERS.plural, member.name)

        def decide(obj: Object) -> Mapping[str, Any] | None:
            nonlocal is_written
            known = project_user(obj).find_role(account)
            if known == role and (known is not None or is_written):
                return None
            if known is None:
                raise NotFound("Member not found.")
            self._check_change(caller, member.name, known, role)
            memberships = [
                entry if entry["accountName"] != account else {**entry, "role": role}
                for entry in obj["spec"]["memberships"]
                if role is not None or entry["accountName"] != account
            ]
            text = f"role changed from {known} to {role}" if role else f"{REMOVED}{known}"
            is_written = True
            changes = note_change(obj, name_caller(caller), text, CLOCK.now(), account)
            return {"metadata": {"annotations": changes}, "spec": {"memberships": memberships}}

        async with writing(USERS, member.name):
            changed = await self._kube.update(USERS.plural, read, decide)
        self._users.upsert(changed)
        _log.info("role changed", user=member.name, role=role, by=caller.key.creator)
        return project_user(changed)

    def _check_change(self, caller: Principal, name: str, known: Role, role: Role | None) -> None:
        """Raise Forbidden where the caller's role does not allow it, Conflict for the last owner.

        Of two owners who take the role from each other at once both may succeed; an administrator
        of the cluster names an owner then.
        """
        concerns_owner = "owner" in (known, role)
        if concerns_owner and find_grant(Act.APPOINT, caller.role) is Grant.NOT_OWNERS:
            raise Forbidden("Only an owner may do this.", code="insufficient_role")
        others = (
            user
            for _, user in [*self._users.items()]
            if user.name != name
            and user.find_role(caller.account.name) == "owner"
            and not user.suspended
        )
        if known == "owner" and next(others, None) is None:
            raise Conflict("The account has no other owner.")


def _find_position(member: tuple[UserRecord, Role]) -> tuple[str, str]:
    user, _ = member
    return user.created_at, user.name
