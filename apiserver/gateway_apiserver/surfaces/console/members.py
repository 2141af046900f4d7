"""Who has a role in the account, and changes of roles."""

from typing import get_args

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_apiserver.surfaces.console.parts import (
    Cell,
    Field,
    Form,
    Head,
    Hint,
    Part,
    Region,
    Screen,
    Table,
    at,
    paginate,
    state,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, Values, read_query
from gateway_apiserver.surfaces.management import ROOT as MANAGEMENT
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_core.accounts.roles import Act
from gateway_core.api.account import Role
from gateway_web.responses import Response

PER_PAGE = 20
_ROLES: tuple[Role, ...] = get_args(Role)


class MemberPages:
    """The list, and one member's role."""

    def __init__(self, console: Console, api: InnerApi) -> None:
        self._api = api
        console.add_section(Section("Members", "/members", Act.READ_MEMBERS))
        console.add_page("/members", self.show_list, "members")
        console.add_form("/members", self.change, "member_change", self.show_list)

    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """A page of members."""
        query, path = read_query(call), f"{seat.home}/members"
        page = await self._api.read(
            call, seat, f"{MANAGEMENT}/members", limit=PER_PAGE, after=query.get("after")
        )
        heads = (Head("Name"), Head("Email"), Head("Role"), Head("State"), Head("Since"))
        rows = [
            [
                Cell(each["name"]),
                Cell(each["email"]),
                state(each["role"]),
                state("suspended" if each["suspended"] else "active"),
                at(each["created_at"]),
            ]
            for each in page["data"]
        ]
        table = paginate(
            Table("Members", heads, rows, "The account has no members."), path, {}, page, query
        )
        parts: list[Part] = [Region([table])]
        if seat.may(Act.APPOINT) and page["data"]:
            people = [
                (str(each["id"]), f"{each['name']} ({each['email']})") for each in page["data"]
            ]
            fields = (
                Field("id", "Member", "select", options=people),
                Field("role", "New role", "select", options=[(role, role) for role in _ROLES]),
            )
            opener = "Change a role"
            parts.append(
                Form(path, opener, fields, token=seat.sign(path), title=opener, opener=opener)
            )
        parts.append(Hint("An administrator of the installation adds and removes members."))
        return Screen("Members", parts)

    async def change(self, call: Call, seat: Seat, values: Values) -> Response:
        """Change a role."""
        wire_id = values.get("id", "")
        path = f"{MANAGEMENT}/members/{wire_id if wire_id.isdigit() else '-'}"
        await self._api.write(call, seat, "PATCH", path, {"role": values.get("role", "")})
        return redirect(f"{seat.home}/members?done=changed")
