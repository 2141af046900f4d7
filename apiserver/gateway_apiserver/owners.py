"""The owners of accounts among the users: who `/api/v1/me` names for a key that nobody made."""

from gateway_apiserver.entries import UserRecord
from gateway_core.ports.caches import Table


class OwnerIndex:
    """Owners by account; follows the table of users."""

    def __init__(self, table: Table[UserRecord]) -> None:
        self._table = table
        self._owners: dict[str, set[str]] = {}
        self._accounts_of: dict[str, tuple[str, ...]] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def find(self, account: str) -> UserRecord | None:
        """The oldest user who owns the account now; None if nobody does."""
        found = [self._table.get(name) for name in self._owners.get(account, ())]
        owners = [owner for owner in found if owner is not None]
        return min(owners, key=lambda owner: (owner.created_at, owner.name), default=None)

    def _follow(self, name: str) -> None:
        for account in self._accounts_of.pop(name, ()):
            names = self._owners[account]
            names.discard(name)
            if not names:
                del self._owners[account]
        record = self._table.get(name)
        owned = tuple(a for a, role in record.roles if role == "owner") if record else ()
        if owned:
            self._accounts_of[name] = owned
        for account in owned:
            self._owners.setdefault(account, set()).add(name)
