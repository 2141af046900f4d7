"""`/members`: users with a role in the account. A management key can only read them (§9.2)."""

from gateway_apiserver.routing import Call, Docs, RouteTable
from gateway_apiserver.surfaces.management import LABEL, ROOT
from gateway_apiserver.surfaces.management.requests import ListQuery
from gateway_apiserver.surfaces.management.responses import Member, render_member
from gateway_apiserver.surfaces.models import Page
from gateway_apiserver.surfaces.validation import read_query
from gateway_core.accounts.records import UserRecord
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
from gateway_core.api.account import Role
from gateway_core.api.errors import Forbidden, NotFound
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import take_page, wrap_page
from gateway_web.responses import Response, to_json


class MemberRoutes:
    """List and change; no API key may change a member."""

    def __init__(self, users: Cache[UserRecord]) -> None:
        self._users = users

    def add_to(self, table: RouteTable) -> None:
        """Add the routes."""
        title, access = "Who has a role in the account", Access(Act.READ_MEMBERS, rate="management")
        docs = Docs("listMembers", title, Page[Member], query=ListQuery)
        table.add("GET", f"{ROOT}/members", self.list_page, LABEL, access, docs)
        access = Access(Act.APPOINT, rate="management")
        docs = Docs("changeMember", "Change a role: only signed in, with no key")
        table.add("PATCH", ROOT + "/members/{user_id}", self.refuse, LABEL, access, docs)

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

    async def refuse(self, _: Call) -> Response:
        """403: only a signed-in owner or admin may change roles (§9.2)."""
        raise Forbidden("No API key may do this.", code="insufficient_role")


def _find_position(member: tuple[UserRecord, Role]) -> tuple[str, str]:
    user, _ = member
    return user.created_at, user.name
