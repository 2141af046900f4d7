"""The stored bytes of files and uploads, and their members in the storage ledger."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import structlog

from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import ACCOUNT_LABEL, SHARD_LABEL, STORED_FINALIZER, shard_of
from gateway_core.api.resource import Object
from gateway_core.files.quota_counters import Pool, StorageLedger, StorageStale, StorageUnavailable
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.storage.content import list_keys
from gateway_core.storage.objects import ObjectStore
from gateway_operator.context import Context
from gateway_operator.files.inventory import list_objects

MOST_KEYS = 500
"""Stored objects deleted by one call."""

_log = structlog.get_logger(__name__)


def find_lacking(obj: Object) -> dict[str, Any]:
    """The patch of an object's metadata that gives it the labels and finalizer it lacks."""
    meta, account = obj["metadata"], obj["spec"]["request"]["accountName"]
    labels, finalizers = meta.get("labels") or {}, meta.get("finalizers") or []
    wanted = {ACCOUNT_LABEL: account, SHARD_LABEL: str(shard_of(meta["name"]))}
    lacking: dict[str, Any] = {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        lacking["labels"] = wanted
    if STORED_FINALIZER not in finalizers:
        lacking["finalizers"] = [*finalizers, STORED_FINALIZER]
    return lacking


@dataclass(eq=False)
class FileStorage:
    """What the controllers of files and uploads do to kube, bytes and the ledger alike.

    They handle objects as they are read: a File may list thousands of segments, and most events
    need two fields of it.
    """

    context: Context
    ledger: StorageLedger

    async def find(self, plural: str, name: str) -> Object | None:
        """Read the object; None if there is none."""
        try:
            return await self.context.kube.get(plural, name)
        except ObjectNotFound:
            return None

    async def release(self, account: str, pool: Pool, member: str) -> None:
        """Free what `member` holds; if the ledger is away, the next quota check does."""
        try:
            await self.ledger.release(account, pool, member)
        except (StorageUnavailable, StorageStale) as error:
            _log.info("storage not released now", member=member, error=type(error).__name__)

    async def move(self, account: str, member: str, to: str) -> None:
        """Make a reservation the File's; if the ledger is away, the next quota check does."""
        try:
            await self.ledger.move(account, "files", member, to)
        except (StorageUnavailable, StorageStale) as error:
            _log.info("reservation not moved now", member=member, error=type(error).__name__)

    async def find_kept(self, upload: str, *, closing: str | None = None) -> frozenset[str]:
        """Keys of all Files made of uploads of this name, except those of the File `closing`.

        A name recurs with its Idempotency-Key once the object of the first Upload is removed, and
        both share one folder: the first one's File may exist for years.
        """
        selector, kept = f"spec.request.uploadName={upload}", set[str]()
        async for file in list_objects(
            self.context.kube, GatewayFile.plural, field_selector=selector
        ):
            if file["metadata"]["name"] != closing:
                kept |= set(list_keys(file))
        return frozenset(kept)

    async def remove_folder(self, folder: str, *, kept: frozenset[str] = frozenset()) -> int:
        """Remove all bytes below `folder`, except those kept; how many objects."""
        entries = self.context.store.list_entries(folder)
        due = (entry.key async for entry in entries if entry.key not in kept)
        return await delete_all(self.context.store, due)

    async def remove_finalizer(self, plural: str, obj: Object) -> Object:
        """Remove the finalizer of stored bytes; the new object. WriteConflict, Missing."""
        finalizers = obj["metadata"].get("finalizers") or []
        if STORED_FINALIZER not in finalizers:
            return obj
        kept = [name for name in finalizers if name != STORED_FINALIZER]
        patch: dict[str, Any] = {"metadata": {"finalizers": kept}}
        return await self.context.kube.patch(plural, obj, patch)


async def delete_all(store: ObjectStore, keys: AsyncIterator[str]) -> int:
    """Delete stored objects as they are listed, without keeping all keys in memory; how many."""
    removed, due = 0, list[str]()
    async for key in keys:
        due.append(key)
        if len(due) >= MOST_KEYS:
            await store.delete_many(due)
            removed, due = removed + len(due), []
    if due:
        await store.delete_many(due)
    return removed + len(due)
