"""Who changed what: the account, keys, guardrails, roles and applications, from the record."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.actors import Actors
from gateway_apiserver.surfaces.console.parts import (
    Cell,
    Field,
    Form,
    Head,
    Hint,
    Screen,
    Table,
    at,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, read_query
from gateway_core.accounts.changes import MOST_CHANGES, Change, read_changes
from gateway_core.accounts.guardrails import Guardrail
from gateway_core.accounts.records import AccountIndex, KeyRecord, UserRecord
from gateway_core.accounts.remains import list_removed
from gateway_core.accounts.roles import Act
from gateway_core.accounts.sign_in import USERS
from gateway_core.api.ids import name_to_id
from gateway_core.api.resource import Object
from gateway_core.kube.informer import Cache
from gateway_core.kube.kinds import GUARDRAILS, KEYS, Kind
from gateway_core.kube.repository import ListLimiter
from gateway_core.oauth.records import GrantRecord, list_grant_changes
from gateway_core.oauth.revocation import GRANTS
from gateway_core.storage.objects import ObjectStore, StoreUnavailable

MOST_SHOWN = 100
_TITLES = {
    KEYS.plural: KEYS.title,
    GUARDRAILS.plural: GUARDRAILS.title,
    USERS.plural: "Member",
    GRANTS.plural: "Application",
}
_FOLDERS = {
    (KEYS.plural, "Standard"): "keys",
    (KEYS.plural, "Management"): "management-keys",
    (GUARDRAILS.plural, ""): "guardrails",
}
"""Folders of the pages of each kind."""
_Entry = tuple[Change, str, Cell]
"""A change, the kind of what was changed, and its name."""


class AuditPage:
    """Shows it."""

    def __init__(
        self,
        console: Console,
        store: ObjectStore,
        keys: AccountIndex[KeyRecord],
        guardrails: AccountIndex[Guardrail],
        users: Cache[UserRecord],
        grants: Cache[GrantRecord],
    ) -> None:
        self._store = store
        self._keys = keys
        self._guardrails = guardrails
        self._users = users
        self._actors = Actors(users)
        self._grants = grants
        self._views = ListLimiter()
        console.add_section(Section("Audit", "/audit", Act.GOVERN, confined=False))
        console.add_page("/audit", self.show, "audit")

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return the latest changes, those with a word in any column if one is given."""
        seat.require(Act.GOVERN, confined=False)
        word = read_query(call).get("word", "").strip()
        # a view reads dozens of objects from the store, which the limiter of lists does not bound
        async with self._views.take(seat.account.name):
            found = [entry async for entry in self._list(seat)]
        # of one second the one that was noted later is the newer one
        ordered = sorted(
            enumerate(found), key=lambda entry: (entry[1][0].time, entry[0]), reverse=True
        )
        folded = word.casefold()
        rows = [
            [at(change.time), *cells]
            for _, (change, kind, what) in ordered
            for cells in [
                (self._actors.show(change.by), Cell(kind, "word"), what, Cell(change.text))
            ]
            if any(folded in cell.text.casefold() for cell in cells)
        ]
        heads = (Head("When"), Head("Who"), Head("Kind"), Head("What"), Head("Change"))
        empty = "No change matches." if word else "Nothing was changed yet."
        # no filter that is sent while one types: each view reads all anew
        search = Form(f"{seat.home}/audit", "Show", (Field("word", "Search", "search", word),))
        text = (
            f"The latest {MOST_SHOWN} changes: of each object at most {MOST_CHANGES} through the"
            " gateway, and the latest by each other program, such as kubectl or gatewayctl. Rows of"
            " deleted ones stay for 30 days. The person who used such a program is in the cluster's"
            " audit log."
        )
        changes = Table("Changes", heads, rows[:MOST_SHOWN], empty)
        return Screen("Audit", [search, changes, Hint(text)])

    async def _list(self, seat: Seat) -> AsyncIterator[_Entry]:
        account = seat.account.name
        for change in seat.account.history.list_changes():
            yield change, "Account", Cell(seat.account.display_name)
        created: dict[tuple[str, str], str] = {}
        # of objects that exist now; some may be removed before the remains are read
        own: set[tuple[str, str, Change]] = set()
        tables: list[tuple[Kind, AccountIndex[Any]]] = [
            (KEYS, self._keys),
            (GUARDRAILS, self._guardrails),
        ]
        for kind, table in tables:
            for each in table.find_current(account):
                if each.shown is None:
                    continue
                created[kind.plural, each.name] = each.shown.position[0]
                place = _FOLDERS[kind.plural, getattr(each, "key_class", "")]
                link = f"{seat.home}/{place}/{name_to_id(each.name)}"
                for change in each.shown.history.list_changes():
                    own.add((kind.plural, each.name, change))
                    yield change, kind.title, Cell(each.display_name, href=link)
        for _, user in [*self._users.items()]:
            if account in user.list_accounts():
                created[USERS.plural, user.name] = user.created_at
            for change in user.list_changes(account):
                own.add((USERS.plural, user.name, change))
                yield change, "Member", Cell(user.display_name)
        for _, grant in [*self._grants.items()]:
            if grant.account == account:
                created[GRANTS.plural, grant.name] = grant.created_at
                for change in list_grant_changes(grant):
                    own.add((GRANTS.plural, grant.name, change))
                    yield change, "Application", Cell(grant.client_name)
        removed: list[tuple[str, Object]] = []
        with suppress(StoreUnavailable):
            removed = await list_removed(self._store, account, MOST_SHOWN)
        for plural, obj in removed:
            since = created.get((plural, obj["metadata"]["name"]))
            for change in read_changes(obj):
                # an object that is there has its own rows
                is_earlier = since is None or change.time <= since
                if is_earlier and (plural, obj["metadata"]["name"], change) not in own:
                    yield change, _TITLES[plural], Cell(obj["spec"]["displayName"])
