"""Guardrails that were deleted: kept in the object store, for cursors and replays that name them.

Written before the guardrail goes, so that whoever is killed between leaves one too many and not
one too few. A cursor that names it goes on working (contract §3.4), and an Idempotency-Key does not
make a second one of its id, which would have the first one's spending.
"""

import orjson

from gateway_core.contract.errors import Unavailable
from gateway_core.ports.objects import ObjectMissing, ObjectStore, StoreUnavailable
from gateway_core.ports.records import Object


class Tombstones:
    """By account and object name."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put(self, account: str, obj: Object) -> None:
        """Keeps what the object was. Unavailable."""
        meta = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
        kept = {"metadata": meta, "spec": obj["spec"]}
        try:
            await self._store.put(_key(account, meta["name"]), orjson.dumps(kept))
        except StoreUnavailable as error:
            raise _unavailable() from error

    async def find(self, account: str, name: str) -> Object | None:
        """What an object of the account was; None if it was not deleted. Unavailable."""
        try:
            obj: Object = orjson.loads(await self._store.get(_key(account, name)))
        except ObjectMissing:
            return None
        except StoreUnavailable as error:
            raise _unavailable() from error
        return obj


def _key(account: str, name: str) -> str:
    return f"guardrails/{account}/{name}.json"


def _unavailable() -> Unavailable:
    return Unavailable("Deleted guardrails cannot be looked up now.", retry_after=1)
