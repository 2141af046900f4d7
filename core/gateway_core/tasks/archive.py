"""Task inputs over 8 KiB and archived ended tasks in the object store."""

import hashlib
import re
from datetime import datetime, timedelta
from typing import Any

import orjson

from gateway_core.accounts.remains import REMOVED_PREFIXES
from gateway_core.api.resource import Object
from gateway_core.api.task import MAX_INLINE_INPUT, SETTLED, TaskRequest
from gateway_core.kube.clock import CLOCK
from gateway_core.storage.objects import ObjectMissing, ObjectStore
from gateway_core.tasks.operations import MAX_BODY_BYTES

RETENTION = timedelta(days=30)
"""How long a result can be read after the task's end (contract §2.3)."""


async def archive_task(store: ObjectStore, obj: Object, mark: str | None = None) -> None:
    """Archive a terminal task, again once its callback is settled. StoreUnavailable.

    `mark` is the key of an empty object that is stored before, once: lists follow it.
    The archive of another task of its name, which an admin has created anew, stays: it has the
    result and cost that the first task's client has seen.
    """
    meta = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    account = obj["spec"]["request"]["accountName"]
    known = await read_archived(store, account, meta["name"])
    is_open = obj["status"].get("work") != SETTLED
    if known is not None and (is_open or not is_same_end(known, obj)):
        return
    if known is None and mark is not None:
        await store.put(mark, b"")
    await store.put(_key(account, meta["name"]), orjson.dumps({**obj, "metadata": meta}))


def is_same_end(known: Object, obj: Object) -> bool:
    """Return whether both are of one task. A restored one has another uid."""
    if known["metadata"]["uid"] == obj["metadata"]["uid"]:
        return True
    ends = [
        (run["spec"]["request"], run["status"].get("upstream"), run["status"].get("completionTime"))
        for run in (known, obj)
    ]
    return ends[0] == ends[1]


async def read_archived(store: ObjectStore, account: str, name: str) -> Object | None:
    """Return the archived task; None if there is none or it has expired. StoreUnavailable."""
    try:
        obj: Object = orjson.loads(await store.get(_key(account, name)))
    except ObjectMissing:
        return None
    ended = obj["status"].get("completionTime")
    if ended and datetime.fromisoformat(ended) + RETENTION < CLOCK.now():
        return None
    return obj


HISTORY_PREFIX = "history/"
"""Folder of the marks of archived tasks (`history`)."""
ACCOUNT_FOLDERS = ("inputs/", "tasks/", HISTORY_PREFIX, *REMOVED_PREFIXES.values())
"""Folders of inputs, archives and their marks, with one for each account in them."""


def _key(account: str, name: str) -> str:
    return f"tasks/{account}/{name}.json"


_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that YAML cannot contain, or reads as line breaks: kubectl cannot print a list with an
object that has one of the former."""


class InputDamaged(Exception):
    """The stored input is not the one that the task refers to."""


async def store_input(
    store: ObjectStore, account: str, name: str, canonical: bytes
) -> dict[str, Any]:
    """Return the member of `spec.request` for an input: `input`, or `inputRef` once stored."""
    text = _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", canonical.decode())
    if len(text.encode()) <= MAX_INLINE_INPUT:
        return {"input": text}
    stored = await store.put(f"inputs/{account}/{name}.json", canonical)
    digest = hashlib.sha256(canonical).hexdigest()
    return {"inputRef": {"key": stored.key, "bytes": len(canonical), "sha256": digest}}


async def load_input(store: ObjectStore, request: TaskRequest) -> dict[str, Any]:
    """Return the input as an object.

    Raises:
        InputDamaged: not a JSON object, or not the bytes that were stored.
        ObjectMissing, StoreUnavailable: from the store.
    """
    if request.input_ref is None:
        raw = (request.input or "").encode()
    else:
        ref = request.input_ref
        # tasks created with kubectl may refer to any key
        if not ref.key.startswith(f"inputs/{request.account_name}/"):
            raise InputDamaged("the stored input is not the account's")
        try:
            # the size first: an object that was replaced by a huge one is never read
            if (await store.head(ref.key)).bytes != ref.bytes or ref.bytes > MAX_BODY_BYTES:
                raise InputDamaged("the stored input has another size")
            raw = await store.get(ref.key)
        except ValueError:
            raise InputDamaged("the stored input's key is not one") from None
        if hashlib.sha256(raw).hexdigest() != request.input_ref.sha256:
            raise InputDamaged("the stored input does not match its digest")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise InputDamaged("the input is not valid JSON") from None
    if not isinstance(value, dict):
        raise InputDamaged("the input is not a JSON object")
    return value
