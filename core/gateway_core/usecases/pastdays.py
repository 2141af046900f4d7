"""Days of usage that have no object any more, kept whole in the object store for reports.

The operator puts a day there before its object goes; the API reads them.
"""

import asyncio
from typing import Any

import orjson

from gateway_core.ports.objects import ObjectStore
from gateway_core.ports.records import Object

_READS_AT_ONCE = 8


async def keep_day(store: ObjectStore, day: Object) -> None:
    """Puts a closed day into the store; the same bytes under the same key, always.

    StoreUnavailable.
    """
    meta, spec = day["metadata"], day["spec"]
    key = f"{_folder(spec['accountName'])}{spec['day']}.{meta['uid']}.json"
    kept = {"name": meta["name"], "uid": meta["uid"]}
    document = {"metadata": kept, "spec": spec, "status": day["status"]}
    await store.put(key, orjson.dumps(document, option=orjson.OPT_SORT_KEYS))


async def read_past_days(
    store: ObjectStore, account: str, first: str, last: str
) -> list[dict[str, Any]]:
    """The account's days that are kept, from `first` to `last` (`2026-11-21`). StoreUnavailable."""
    folder, keys = _folder(account), list[str]()
    async for entry in store.list_entries(folder, start_after=folder + first):
        if entry.key.removeprefix(folder)[: len(last)] > last:
            break
        keys.append(entry.key)
    slots = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(key: str) -> dict[str, Any]:
        async with slots:
            day: dict[str, Any] = orjson.loads(await store.get(key))
            return day

    return await asyncio.gather(*map(read, keys))


def _folder(account: str) -> str:
    return f"usage/{account}/"
