"""The archive in the object store: finished tasks, and what is left of removed keys and guardrails.

The operator puts a task there as soon as it has ended, before its finalizer goes; the put is
idempotent. The API reads it. What the task cost is in its account's usage, not to be had from here.

Of a key or guardrail that is removed stays what a cursor (contract §3.4) and a repeated create
(§2.2) need: without it, an Idempotency-Key would make a second object of the first one's id, with
the first one's spending. It is put before the object goes, so a kill leaves one too many.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

import orjson

from gateway_core.contract.guardrail import GatewayGuardrail
from gateway_core.contract.key import GatewayKey
from gateway_core.contract.names import REPLAYS_ANNOTATION
from gateway_core.ports.clock import CLOCK
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
    if ended and datetime.fromisoformat(ended) + RETENTION < CLOCK.now():
        return None
    return obj


REMOVED_PREFIXES: Mapping[str, str] = {
    GatewayGuardrail.plural: "guardrails/",
    GatewayKey.plural: "keys/",
}
"""Where the remains of removed objects are, by kind; below it a folder for each account."""


async def archive_removed(store: ObjectStore, plural: str, account: str, obj: Object) -> None:
    """Puts what is to stay of a key or guardrail, some hundred bytes. StoreUnavailable."""
    meta, spec = obj["metadata"], obj["spec"]
    annotations = dict(meta.get("annotations") or {})
    annotations.pop(REPLAYS_ANNOTATION, None)
    kept = {name: spec[name] for name in ("accountName", "createdBy") if name in spec}
    if spec.get("keyNames"):
        kept["keyNames"] = spec["keyNames"][:1]
    remains = {
        "metadata": {
            "name": meta["name"],
            "creationTimestamp": meta["creationTimestamp"],
            "annotations": annotations,
        },
        "spec": kept,
    }
    await store.put(_removed_key(plural, account, meta["name"]), orjson.dumps(remains))


async def read_removed(store: ObjectStore, plural: str, account: str, name: str) -> Object | None:
    """What is left of an object of the account; None if it was not removed. StoreUnavailable."""
    try:
        obj: Object = orjson.loads(await store.get(_removed_key(plural, account, name)))
    except ObjectMissing:
        return None
    return obj


def _removed_key(plural: str, account: str, name: str) -> str:
    return f"{REMOVED_PREFIXES[plural]}{account}/{name}.json"


def _key(account: str, name: str) -> str:
    return f"tasks/{account}/{name}.json"
