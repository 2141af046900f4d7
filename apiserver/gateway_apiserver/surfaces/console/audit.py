"""Who changed what: keys, guardrails and access of applications, from the record."""

from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.console.parts import (
    Cell,
    Field,
    Form,
    Head,
    Hint,
    Region,
    Screen,
    Table,
    at,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, read_query
from gateway_core.accounts.changes import read_changes
from gateway_core.accounts.records import UserRecord
from gateway_core.accounts.roles import Act
from gateway_core.api.ids import name_to_id
from gateway_core.kube.informer import Cache
from gateway_core.kube.repository import GUARDRAILS, KEYS, Repository
from gateway_core.oauth.records import GrantRecord

MOST_SHOWN = 100


class AuditPage:
    """Shows it."""

    def __init__(
        self,
        console: Console,
        repository: Repository,
        users: Cache[UserRecord],
        grants: Cache[GrantRecord],
    ) -> None:
        self._repository = repository
        self._users = users
        self._grants = grants
        console.add_section(Section("Audit", "/audit", Act.GOVERN, confined=False))
        console.add_page("/audit", self.show, "audit")

    async def show(self, call: Call, seat: Seat) -> Screen:
        """The latest changes, those with a word in any column if one is given."""
        seat.require(Act.GOVERN, confined=False)
        word = read_query(call).get("word", "").strip()
        found: list[tuple[tuple[str, int], list[Cell]]] = []
        for kind, noun in ((KEYS, "keys"), (GUARDRAILS, "guardrails")):
            listing = await self._repository.list_all(kind, seat.account.name)
            for name, obj in listing.objects.items():
                link = f"{seat.home}/{noun}/{name_to_id(name)}"
                what = Cell(obj["spec"]["displayName"], href=link)
                found += [
                    (
                        (one.time, place),
                        [self._name(one.by), Cell(kind.title), what, Cell(one.text)],
                    )
                    for place, one in enumerate(read_changes(obj))
                ]
        for _, grant in [*self._grants.items()]:
            if grant.account == seat.account.name:
                who = self._name(f"user/{grant.user}")
                cells = [who, Cell("Application"), Cell(grant.client_name), Cell("access given")]
                found.append(((grant.created_at, 0), cells))
        folded = word.casefold()
        rows = [
            [at(time), *cells]
            for (time, _), cells in sorted(found, key=lambda entry: entry[0], reverse=True)
            if any(folded in cell.text.casefold() for cell in cells)
        ]
        heads = (Head("When"), Head("Who"), Head("Kind"), Head("What"), Head("Change"))
        empty = "No change matches." if word else "Nothing was changed yet."
        search = Form(
            f"{seat.home}/audit",
            "Show",
            (Field("word", "With the word", "search", word),),
            filters=True,
        )
        text = (
            f"The latest {MOST_SHOWN} changes by the console and Platform Management, 16 of each"
            " key and guardrail. Changes with kubectl, and what is deleted, are in the audit log of"
            " the cluster."
        )
        changes = Region([Table("Changes", heads, rows[:MOST_SHOWN], empty)])
        return Screen("Audit", [search, changes, Hint(text)])

    def _name(self, by: str) -> Cell:
        kind, _, name = by.partition("/")
        if kind != "user":
            return Cell(name_to_id(name), "code")
        user = self._users.get(name)
        return Cell(name if user is None else user.display_name)
