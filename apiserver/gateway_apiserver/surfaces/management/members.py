"""`/members`: users with a role in the account. A management key can only read them (§9.2).

The signed-in owner changes roles in the console; an admin does so too, but not upon owners.
"""

from collections.abc import Mapping
from typing import Any

import structlog

from gateway_apiserver.endpoints import Call, Docs, RouteTable
from gateway_apiserver.surfaces.management import LABEL, ROOT
from gateway_apiserver.surfaces.management.changes import name_caller
from gateway_apiserver.surfaces.management.requests import ListQuery
from gateway_apiserver.surfaces.management.responses import Member, render_member
from gateway_apiserver.surfaces.models import Page, Request
from gateway_apiserver.surfaces.validation import read_body, read_query
from gateway_core.accounts.changes import note_change
from gateway_core.accounts.records import UserRecord, project_user
from gateway_core.accounts.roles import Act, Grant, find_grant
from gateway_core.accounts.sign_in import USERS
from gateway_core.admission.admission import Access
from gateway_core.api.account import Role
from gateway_core.api.errors import Conflict, Forbidden, NotFound
from gateway_core.api.resource import Object
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import take_page, wrap_page
from gateway_core.kube.repository import writing
from gateway_web.responses import Response, to_json

_log = structlog.get_logger(__name__)


class RoleChange(Request):
    """The new role of a member."""

    role: Role


class MemberRoutes:
    """List and change; no API key may change a member."""

    def __init__(self, users: Cache[UserRecord], kube: KubernetesClient) -> None:
        self._users = users
        self._kube = kube

    def add_to(self, table: RouteTable) -> None:
        """Add the routes."""
        title, access = "Who has a role in the account", Access(Act.READ_MEMBERS, rate="management")
        docs = Docs("listMembers", title, Page[Member], query=ListQuery)
        table.add("GET", f"{ROOT}/members", self.list_page, LABEL, access, docs)
        access = Access(Act.APPOINT, rate="management")
        docs = Docs("changeMember", "Change a role: only signed in, with no key")
        table.add("PATCH", ROOT + "/members/{user_id}", self.change, LABEL, access, docs)

    async def list_page(self, call: Call) -> Response:
        """A page of the account's members, from the informer of users."""
        query = read_query(ListQuery, call.query)
        members: dict[str, tuple[UserRecord, Role]] = {
            str(user.id): (user, role)
            for _, user in [*self._users.items()]
            if (role := user.find_role(call.account)) is not None
        }
        after = None
        if query.after is not None:
            if query.after not in members:
                raise NotFound("Member not found.")
            after = _find_position(members[query.after])
        page, more = take_page(
            [*members.values()], _find_position, after=after, limit=query.limit, order=query.order
        )
        shown = [render_member(user, role).model_dump() for user, role in page]
        return to_json(wrap_page(shown, more))

    async def change(self, call: Call) -> Response:
        """Change the role of a member; the last owner stays one. The access refuses all keys."""
        role, account = (await read_body(call, RoleChange)).role, call.account
        member = next(
            (
                user
                for _, user in [*self._users.items()]
                if str(user.id) == call.wire_id and user.find_role(account) is not None
            ),
            None,
        )
        if member is None:
            raise NotFound("Member not found.")

        async def read() -> Object:
            return await self._kube.get(USERS.plural, member.name)

        def decide(obj: Object) -> Mapping[str, Any] | None:
            known = project_user(obj).find_role(account)
            if known is None:
                raise NotFound("Member not found.")
            if known == role:
                return None
            self._check_change(call, member.name, known, role)
            memberships = [
                {**entry, "role": role} if entry["accountName"] == account else entry
                for entry in obj["spec"]["memberships"]
            ]
            text = f"role changed from {known} to {role}"
            changes = note_change(obj, name_caller(call), text, CLOCK.now(), account)
            return {"metadata": {"annotations": changes}, "spec": {"memberships": memberships}}

        async with writing(USERS, member.name):
            changed = await self._kube.update(USERS.plural, read, decide)
        self._users.upsert(changed)
        _log.info("role changed", user=member.name, role=role, by=call.caller.key.creator)
        return to_json(render_member(project_user(changed), role))

    def _check_change(self, call: Call, name: str, known: Role, role: Role) -> None:
        """Raise Forbidden where the caller's role does not allow it, Conflict for the last owner.

        Of two owners who take the role from each other at once both may succeed; an administrator
        of the cluster names an owner then.
        """
        concerns_owner = "owner" in (known, role)
        if concerns_owner and find_grant(Act.APPOINT, call.caller.role) is Grant.NOT_OWNERS:
            raise Forbidden("Only an owner may do this.", code="insufficient_role")
        others = (
            user
            for _, user in [*self._users.items()]
            if user.name != name and user.find_role(call.account) == "owner" and not user.suspended
        )
        if known == "owner" and next(others, None) is None:
            raise Conflict("The account has no other owner.")


def _find_position(member: tuple[UserRecord, Role]) -> tuple[str, str]:
    user, _ = member
    return user.created_at, user.name
