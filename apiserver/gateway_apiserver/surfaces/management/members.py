"""`/members`: who has a role in the account. A management key reads them only (contract §9.2)."""

from gateway_apiserver.responses import Response, to_json
from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.management.requests import ListQuery
from gateway_apiserver.surfaces.management.responses import render_member
from gateway_apiserver.surfaces.validation import read_query
from gateway_core.accounts.records import UserRecord
from gateway_core.api.account import Role
from gateway_core.api.errors import NotFound
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import take_page, wrap_page


class MemberRoutes:
    """The handler; its route has authorized the caller."""

    def __init__(self, users: Cache[UserRecord]) -> None:
        self._users = users

    async def list_members(self, call: Call) -> Response:
        """A page of the account's members, as this process knows them."""
        query = read_query(ListQuery, call.query)
        members: dict[str, tuple[UserRecord, Role]] = {
            str(user.id): (user, role)
            for _, user in list(self._users.items())
            if (role := user.find_role(call.account)) is not None
        }
        after = None
        if query.after is not None:
            if query.after not in members:
                raise NotFound("Member not found.")
            after = _find_position(members[query.after][0])
        page, more = take_page(
            list(members.values()),
            lambda member: _find_position(member[0]),
            after=after,
            limit=query.limit,
            order=query.order,
        )
        shown = [render_member(user, role).model_dump() for user, role in page]
        return to_json(wrap_page(shown, more))


def _find_position(user: UserRecord) -> tuple[str, str]:
    return user.created_at, user.name
