"""Names of those who made a change, in the same words on every page."""

from gateway_apiserver.surfaces.console.parts import Cell
from gateway_core.accounts.changes import CREATED, UNKNOWN_END
from gateway_core.accounts.guardrails import Shown
from gateway_core.accounts.records import UserRecord
from gateway_core.api.ids import name_to_id
from gateway_core.kube.informer import Cache


class Actors:
    """Shows `Change.by` as a person reads it."""

    def __init__(self, users: Cache[UserRecord]) -> None:
        self._users = users

    def show(self, by: str) -> Cell:
        """Return the name of a person, key, application or program."""
        kind, _, name = by.partition("/")
        if kind == "client":
            return Cell(f"Administrator, by {name}" if name else "Administrator")
        if kind == "application":
            # a client chooses its own name
            return Cell(f"Application {name}")
        if kind == "gateway":
            return Cell("Gateway")
        if kind != "user":
            return Cell(name_to_id(name), "code")
        user = self._users.get(name)
        return Cell(name if user is None else user.display_name)

    def show_creator(self, shown: Shown, creator: str | None) -> Cell:
        """Return the maker of an object, by its changes or the user whom it names."""
        made = (change.by for change in shown.history.list_changes() if change.text == CREATED)
        otherwise = f"user/{creator}" if creator else UNKNOWN_END[0]
        return self.show(next(made, otherwise))
