"""`/members`: who has a role in the account (contract §9.2). No API key may change a member."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from gateway_apiserver.access import ByCaller, provided, requires
from gateway_apiserver.routes import GatewayRoute
from gateway_apiserver.surfaces.management import LABEL, ROOT
from gateway_apiserver.surfaces.management.members import MemberService, RoleChange
from gateway_apiserver.surfaces.management.requests import ListQuery
from gateway_apiserver.surfaces.management.responses import Member
from gateway_apiserver.surfaces.models import Page
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access

router = APIRouter(prefix=f"{ROOT}/members", route_class=GatewayRoute, tags=["Members"])

Members = Annotated[MemberService, Depends(provided(MemberService))]


@router.get("", operation_id="listMembers", summary="List the members of the account")
@requires(Access(Act.READ_MEMBERS, rate="management"), LABEL)
async def list_members(
    query: Annotated[ListQuery, Query()], caller: ByCaller, members: Members
) -> Page[Member]:
    """List a page of the account's members."""
    return members.list_page(caller.account, query)


@router.patch(
    "/{user_id}",
    operation_id="changeMember",
    summary="Change a member's role, signed in only",
    responses={409: {}, 504: {}},
)
@requires(Access(Act.APPOINT, rate="management"), LABEL)
async def change_member(
    user_id: str, body: RoleChange, caller: ByCaller, members: Members
) -> Member:
    """Change the role of a member; the last owner stays one."""
    return await members.change(caller.principal, user_id, body.role)
