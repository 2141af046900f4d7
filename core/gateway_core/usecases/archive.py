"""The archive of finished tasks in the object store: what GET answers from once an object is gone.

The operator puts a task there as soon as it has ended, before its finalizer goes; the put is
idempotent. The API reads it. What the task cost is in its account's usage, not to be had from here.
"""

from datetime import UTC, datetime, timedelta

import orjson

from gateway_core.ports.objects import ObjectMissing, ObjectStore
from gateway_core.ports.records import Object

RETENTION = timedelta(days=30)
"""How long a result can be read after its end (contract §2.3)."""


async def archive_task(store: ObjectStore, obj: Object) -> None:
    """Puts a terminal task into the archive. StoreUnavailable.

    Not in place of another of its name, made anew by an admin: what the first one's client was told
    and what it cost stays.
    """
    meta = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    account = obj["spec"]["request"]["accountName"]
    known = await read_archived(store, account, meta["name"])
    if known is not None and known["metadata"]["uid"] != meta["uid"]:
        return
    await store.put(_key(account, meta["name"]), orjson.dumps({**obj, "metadata": meta}))


async def read_archived(store: ObjectStore, account: str, name: str) -> Object | None:
    """The archived task, None if there is none or its time is over. StoreUnavailable."""
    try:
        obj: Object = orjson.loads(await store.get(_key(account, name)))
    except ObjectMissing:
        return None
    ended = obj["status"].get("completionTime")
    if ended and datetime.fromisoformat(ended) + RETENTION < datetime.now(UTC):
        return None
    return obj


def _key(account: str, name: str) -> str:
    return f"tasks/{account}/{name}.json"
