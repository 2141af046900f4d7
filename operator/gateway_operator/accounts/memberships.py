"""Notes on a user which memberships another program, such as kubectl, has taken from it.

The API server does not say what a program has removed, and the audit of an account finds a user
who is no member any more only by a note that names the account. `status.memberships` are those seen
last, so a removal while no operator runs is noted too. The API notes its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway_core.accounts.changes import REMOVED, UNKNOWN_END, note_change, read_changes
from gateway_core.api.account import GatewayAccount, GatewayUser, Membership
from gateway_core.api.ids import CHANGES_ANNOTATION
from gateway_core.api.resource import Object
from gateway_core.kube.informer import Cache
from gateway_operator.context import Context


@dataclass(eq=False)
class Memberships:
    """Compares the memberships of users with those seen last."""

    context: Context
    accounts: Cache[GatewayAccount]

    async def compare(self, user: GatewayUser) -> Mapping[str, Any]:
        """Note what has changed; return the change of the status, empty for none.

        Raises:
            WriteConflict, ObjectNotFound: the user was changed or deleted meanwhile.
        """
        current, seen = _list_roles(user.spec.memberships), _list_roles(user.status.memberships)
        if user.status.memberships is not None:
            if current == seen:
                return {}
            if current.keys() != seen.keys():
                await self._note(user.metadata.name, seen)
        elif not current:
            return {}
        listed = [{"accountName": name, "role": role} for name, role in current.items()]
        return {"memberships": listed}

    async def _note(self, name: str, seen: Mapping[str, str]) -> None:
        obj = noted = await self.context.kube.get(GatewayUser.plural, name)
        present = obj["spec"].get("memberships") or ()
        current = {one["accountName"]: one["role"] for one in present}
        for account in sorted(seen.keys() ^ current.keys()):
            found = self.accounts.get(account)
            if found is None or found.metadata.deletion_timestamp is not None:
                # its rows are removed with it
                continue
            is_noted = _is_removed(noted, account)
            if account not in current and not is_noted:
                noted = self._add(noted, f"{REMOVED}{seen[account]}", account)
            elif account in current and is_noted:
                noted = self._add(noted, f"added as {current[account]}", account)
        if noted is not obj:
            rows = {CHANGES_ANNOTATION: noted["metadata"]["annotations"][CHANGES_ANNOTATION]}
            await self.context.kube.patch(
                GatewayUser.plural, obj, {"metadata": {"annotations": rows}}
            )

    def _add(self, obj: Object, text: str, account: str) -> Object:
        rows = note_change(obj, UNKNOWN_END[0], text, self.context.now(), account)
        meta = obj["metadata"]
        return {**obj, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), **rows}}}


def _list_roles(memberships: Iterable[Membership] | None) -> dict[str, str]:
    return {one.account_name: one.role for one in memberships or ()}


def _is_removed(obj: Object, account: str) -> bool:
    """Return whether the latest note about the account says that the user was removed."""
    texts = [change.text for change in read_changes(obj) if change.account == account]
    return bool(texts) and texts[-1].startswith(REMOVED)
