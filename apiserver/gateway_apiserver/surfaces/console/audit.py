"""Who changed what: the account, keys, guardrails, roles and applications, from the record."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from gateway_apiserver.endpoints import Call
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
from gateway_core.accounts.roles import Act
from gateway_core.api.ids import name_to_id
from gateway_core.kube.informer import Cache
from gateway_core.kube.kinds import GUARDRAILS, KEYS, Kind
from gateway_core.kube.repository import ListLimiter
from gateway_core.oauth.records import GrantRecord
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import list_removed

MOST_SHOWN = 100
MOST_REMOVED = 25
"""Removed objects of a kind whose remains are read, the latest ones."""
_SHOWN = "Standard"
"""Class of the keys that accounts govern."""
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
        self._grants = grants
        self._views = ListLimiter()
        console.add_section(Section("Audit", "/audit", Act.GOVERN, confined=False))
        console.add_page("/audit", self.show, "audit")

    async def show(self, call: Call, seat: Seat) -> Screen:
        """The latest changes, those with a word in any column if one is given."""
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
            for cells in [(self._name(change.by), Cell(kind, "word"), what, Cell(change.text))]
            if any(folded in cell.text.casefold() for cell in cells)
        ]
        heads = (Head("When"), Head("Who"), Head("Kind"), Head("What"), Head("Change"))
        empty = "No change matches." if word else "Nothing was changed yet."
        # no filter that is sent while one types: each view reads all anew
        search = Form(f"{seat.home}/audit", "Show", (Field("word", "Search", "search", word),))
        text = (
            f"The latest {MOST_SHOWN} changes: of each object at most {MOST_CHANGES} through the"
            " gateway, and the latest by each other program, such as kubectl or gatewayctl. Whose"
            " these are, and deletions by such programs, are in the cluster's audit log."
        )
        changes = Table("Changes", heads, rows[:MOST_SHOWN], empty)
        return Screen("Audit", [search, changes, Hint(text)])

    async def _list(self, seat: Seat) -> AsyncIterator[_Entry]:
        account = seat.account.name
        for change in seat.account.history.list_changes():
            yield change, "Account", Cell(seat.account.display_name)
        tables: list[tuple[Kind, str, AccountIndex[Any]]] = [
            (KEYS, "keys", self._keys),
            (GUARDRAILS, "guardrails", self._guardrails),
        ]
        for kind, noun, table in tables:
            for each in table.find_current(account):
                if each.shown is None or getattr(each, "key_class", _SHOWN) != _SHOWN:
                    continue
                link = f"{seat.home}/{noun}/{name_to_id(each.name)}"
                for change in each.shown.history.list_changes():
                    yield change, kind.title, Cell(each.display_name, href=link)
            removed = []
            with suppress(StoreUnavailable):
                removed = await list_removed(self._store, kind.plural, account, MOST_REMOVED)
            for obj in removed:
                known = name_to_id(obj["metadata"]["name"])
                for change in read_changes(obj):
                    yield change, kind.title, Cell(obj["spec"].get("displayName", known))
        for _, user in [*self._users.items()]:
            if user.find_role(account) is None:
                continue
            # what another program has written may be about another account
            is_only_here = len(user.roles) == 1
            for change in user.changes:
                if change.account == account or (is_only_here and not change.account):
                    yield change, "Member", Cell(user.display_name)
        for _, grant in [*self._grants.items()]:
            if grant.account == account:
                change = Change(grant.created_at, f"user/{grant.user}", "access given")
                yield change, "Application", Cell(grant.client_name)

    def _name(self, by: str) -> Cell:
        kind, _, name = by.partition("/")
        if kind == "client":
            return Cell(f"Administrator, by {name}")
        if kind != "user":
            return Cell(name_to_id(name), "code")
        user = self._users.get(name)
        return Cell(name if user is None else user.display_name)
