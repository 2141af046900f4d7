"""Keys and guardrails that were removed, as far as cursors and replays need them.

The operator removes what is left after 30 days, and of each account beyond a number.
"""

from gateway_apiserver.repository import Kind
from gateway_core.api.errors import Unavailable
from gateway_core.api.resource import Object
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import archive_removed, read_removed


class RemovedObjects:
    """By kind, account and object name."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put(self, kind: Kind, account: str, obj: Object) -> None:
        """Keeps what is needed of the object, before it goes. Unavailable."""
        try:
            await archive_removed(self._store, kind.plural, account, obj)
        except StoreUnavailable as error:
            raise _unavailable(kind) from error

    async def find(self, kind: Kind, account: str, name: str) -> Object | None:
        """What is left of an object of the account; None if it was not removed. Unavailable."""
        try:
            return await read_removed(self._store, kind.plural, account, name)
        except StoreUnavailable as error:
            raise _unavailable(kind) from error


def _unavailable(kind: Kind) -> Unavailable:
    title = kind.title.lower()
    return Unavailable(f"Removed {title}s cannot be looked up now.", retry_after=1)
