"""What the controllers of files and uploads, and the reconciliation, are given to work with."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from gateway_core.api.account import GatewayAccount
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import ACCOUNT_LABEL, SHARD_LABEL, STORED_FINALIZER, IdMint, shard_of
from gateway_core.api.resource import Object
from gateway_core.api.times import parse_time
from gateway_core.files.files import FileRecorder
from gateway_core.files.quota_counters import Pool, StorageLedger, StorageStale, StorageUnavailable
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.kube.informer import Cache
from gateway_core.storage.content import list_keys
from gateway_core.storage.objects import ObjectStore
from gateway_operator.failpoints import Failpoints
from gateway_operator.files.inventory import list_objects
from gateway_operator.metrics import Metrics

MOST_KEYS = 500
"""Keys that are removed by one call."""

_log = structlog.get_logger(__name__)


def find_lacking(obj: Object) -> dict[str, Any]:
    """What of an object's metadata has to be as the gateway makes it, and is not."""
    meta, account = obj["metadata"], obj["spec"]["request"]["accountName"]
    labels, finalizers = meta.get("labels") or {}, meta.get("finalizers") or []
    wanted = {ACCOUNT_LABEL: account, SHARD_LABEL: str(shard_of(meta["name"]))}
    lacking: dict[str, Any] = {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        lacking["labels"] = wanted
    if STORED_FINALIZER not in finalizers:
        lacking["finalizers"] = [*finalizers, STORED_FINALIZER]
    return lacking


@dataclass(frozen=True, slots=True)
class FileStorage:
    """The parts of the operator that files and uploads need; `now` is called for its value."""

    kube: KubernetesClient
    store: ObjectStore
    ledger: StorageLedger
    files: FileRecorder
    accounts: Cache[GatewayAccount]
    mint: IdMint
    failpoints: Failpoints
    metrics: Metrics
    now: Callable[[], datetime]

    def age(self, time: str) -> float:
        """Seconds since a time of the record."""
        return (self.now() - parse_time(time)).total_seconds()

    async def find(self, plural: str, name: str) -> Object | None:
        """The object as it is in the record, None where there is none."""
        try:
            return await self.kube.get(plural, name)
        except ObjectNotFound:
            return None

    async def release(self, account: str, pool: Pool, member: str) -> None:
        """Frees what `member` has; what cannot be told now is found by the next proof."""
        try:
            await self.ledger.release(account, pool, member)
        except (StorageUnavailable, StorageStale) as error:
            _log.info("storage not released now", member=member, error=type(error).__name__)

    async def move(self, account: str, member: str, to: str) -> None:
        """Has a reservation stand for its File; what cannot be told now is found as above."""
        try:
            await self.ledger.move(account, "files", member, to)
        except (StorageUnavailable, StorageStale) as error:
            _log.info("reservation not moved now", member=member, error=type(error).__name__)

    async def find_kept(self, upload: str, *, closing: str | None = None) -> frozenset[str]:
        """Keys of all Files that came of uploads of this name, save of the File `closing`.

        A name comes again with its Idempotency-Key once the object of the first Upload is removed,
        and both have one folder: the first one's File may stand for years.
        """
        selector, kept = f"spec.request.uploadName={upload}", set[str]()
        async for file in list_objects(self.kube, GatewayFile.plural, field_selector=selector):
            if file["metadata"]["name"] != closing:
                kept |= set(list_keys(file))
        return frozenset(kept)

    async def remove_folder(self, folder: str, *, kept: frozenset[str] = frozenset()) -> int:
        """Removes all bytes whose keys begin with `folder`, save those kept; how many objects."""
        removed, due = 0, list[str]()
        async for entry in self.store.list_entries(folder):
            if entry.key not in kept:
                due.append(entry.key)
            if len(due) >= MOST_KEYS:
                await self.store.delete_many(due)
                removed, due = removed + len(due), []
        if due:
            await self.store.delete_many(due)
        return removed + len(due)

    async def let_go(self, plural: str, obj: Object) -> Object:
        """Remove the finalizer of stored bytes; the new object. WriteConflict, ObjectNotFound."""
        finalizers = obj["metadata"].get("finalizers") or []
        if STORED_FINALIZER not in finalizers:
            return obj
        kept = [name for name in finalizers if name != STORED_FINALIZER]
        patch: dict[str, Any] = {"metadata": {"finalizers": kept}}
        return await self.kube.patch(plural, obj, patch)
