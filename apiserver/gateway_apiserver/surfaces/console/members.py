"""Who has a role in the account."""

from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_apiserver.surfaces.console.parts import (
    Cell,
    Head,
    Hint,
    Screen,
    Table,
    at,
    paginate,
    state,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, read_query
from gateway_apiserver.surfaces.management import ROOT as MANAGEMENT
from gateway_core.accounts.roles import Act

PER_PAGE = 20


class MemberPages:
    """The list."""

    def __init__(self, console: Console, api: InnerApi) -> None:
        self._api = api
        console.add_section(Section("Members", "/members", Act.READ_MEMBERS))
        console.add_page("/members", self.show_list, "members")

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
        table = paginate(Table("Members", heads, rows, "Nobody."), path, {}, page, query)
        text = "An administrator of the installation adds and removes members."
        return Screen("Members", [table, Hint(text)])
