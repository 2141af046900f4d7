"""Remains of removed objects in the object store: for cursors, repeated creates and the audit.

Of each removed key, guardrail, grant and user there is one document in its account, with all rows
that the audit has of it. The next object of the name adds to them.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from heapq import nlargest

import orjson

from gateway_core.accounts.changes import Change, read_changes, write_changes
from gateway_core.api.account import GatewayUser
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import REPLAYS_ANNOTATION
from gateway_core.api.key import GatewayKey
from gateway_core.api.oauth import GatewayGrant
from gateway_core.api.resource import Object
from gateway_core.concurrency import map_bounded
from gateway_core.storage.objects import Entry, ObjectMissing, ObjectStore

REMOVED_PREFIXES: Mapping[str, str] = {
    GatewayGuardrail.plural: "guardrails/",
    GatewayKey.plural: "keys/",
    GatewayGrant.plural: "grants/",
    GatewayUser.plural: "members/",
}
"""Folders of the remains of removed objects, by kind; below them one for each account."""
MOST_ROWS = 100
"""Rows of one name, those of its earlier objects included; the oldest are dropped first."""
_MOST_SCANNED = 5000
"""Remains of one account and kind that are looked through: they are kept for 30 days."""
_READS_AT_ONCE = 8


async def archive_removed(
    store: ObjectStore, plural: str, account: str, obj: Object, rows: Iterable[Change]
) -> None:
    """Archive the remains of an object, at most some KiB, with its rows of the audit.

    It may be repeated: each row is kept once. StoreUnavailable.
    """
    meta, spec = obj["metadata"], obj["spec"]
    created = meta["creationTimestamp"]
    known = await read_removed(store, plural, account, meta["name"])
    # of an earlier object: an interrupted deletion of this one has noted an end that was none
    earlier = [row for row in read_changes(known) if row.time <= created] if known else []
    annotations = dict(meta.get("annotations") or {})
    annotations.pop(REPLAYS_ANNOTATION, None)
    annotations |= write_changes([*dict.fromkeys([*earlier, *rows])][-MOST_ROWS:])
    kept = {name: spec[name] for name in ("createdBy",) if name in spec}
    if spec.get("keyNames"):
        kept["keyNames"] = spec["keyNames"][:1]
    shown = spec.get("displayName") or spec.get("clientName") or meta["name"]
    remains = {
        "metadata": {
            "name": meta["name"],
            "creationTimestamp": created,
            "annotations": annotations,
        },
        "spec": {**kept, "accountName": account, "displayName": shown},
    }
    await store.put(_locate(plural, account, meta["name"]), orjson.dumps(remains))


async def read_removed(store: ObjectStore, plural: str, account: str, name: str) -> Object | None:
    """Return the remains of an object of the account; None if it was not removed.

    Raises StoreUnavailable.
    """
    try:
        obj: Object = orjson.loads(await store.get(_locate(plural, account, name)))
    except ObjectMissing:
        return None
    return obj


async def list_removed(store: ObjectStore, account: str, most: int) -> list[tuple[str, Object]]:
    """Kinds and remains of the account's objects that were removed last. StoreUnavailable."""
    entries: list[tuple[str, Entry]] = []
    for plural, prefix in REMOVED_PREFIXES.items():
        scanned = 0
        async for entry in store.list_entries(f"{prefix}{account}/"):
            entries.append((plural, entry))
            scanned += 1
            if scanned == _MOST_SCANNED:
                break
    found: list[tuple[str, Object]] = []

    async def read(listed: tuple[str, Entry]) -> None:
        plural, entry = listed
        with suppress(ObjectMissing):
            found.append((plural, orjson.loads(await store.get(entry.key))))

    latest = nlargest(most, entries, key=lambda listed: listed[1].modified)
    await map_bounded(_READS_AT_ONCE, read, latest)
    return found


def _locate(plural: str, account: str, name: str) -> str:
    return f"{REMOVED_PREFIXES[plural]}{account}/{name}.json"
