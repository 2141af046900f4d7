"""The bytes of files and uploads, their members in the storage ledger, and the list of all.

The inventory has as little of each object as comparisons need: its memory grows by less than 300
bytes with each.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import STORED_FINALIZER
from gateway_core.api.resource import Object
from gateway_core.api.times import parse_time
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.files import find_expiry
from gateway_core.files.quota_counters import Pool, StorageLedger
from gateway_core.files.uploads import is_settled, read_expiry, read_member
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.kube.lists import list_pages
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.content import list_keys, pool_of
from gateway_core.storage.objects import ObjectStore
from gateway_operator.context import Context

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file: its owner, its size, and a digest of where its bytes are and how many each has.

    Times are Unix seconds; `leaving` is since when it is being deleted. `is_good` is what `Ready`
    says.
    """

    account: str
    purpose: str
    pool: Pool
    bytes: int
    digest: int
    created: float
    expiry: int | None
    leaving: float | None
    is_good: bool

    def is_there(self, now: float) -> bool:
        """Return whether clients can see it, and its bytes count."""
        return self.leaving is None and (self.expiry is None or now < self.expiry)


@dataclass(frozen=True, slots=True)
class UploadFacts:
    """An Upload that is not settled: its member of the ledger, and the file it will become."""

    account: str
    bytes: int
    created: float
    expiry: int
    member: str | None
    file: str | None


@dataclass(slots=True)
class Inventory:
    """All files, the file of each completed Upload, and the uploads with work left, by name."""

    files: dict[str, FileFacts] = field(default_factory=dict)
    by_upload: dict[str, str] = field(default_factory=dict)
    uploads: dict[str, UploadFacts] = field(default_factory=dict)


def digest_places(places: dict[str, int]) -> int:
    """Return a digest of keys and their sizes, in any order; differs between processes."""
    return hash(frozenset(places.items()))


async def take_inventory(kube: KubernetesClient) -> Inventory:
    """Read all pages. Uploads first: one that is completed meanwhile is seen as its file.

    Raises KubernetesUnavailable, and VersionExpired where a page took minutes.
    """
    inventory = Inventory()
    async for obj in list_objects(kube, GatewayUpload.plural):
        if not is_settled(obj):
            inventory.uploads[obj["metadata"]["name"]] = _read_upload(obj)
    async for obj in list_objects(kube, GatewayFile.plural):
        name = obj["metadata"]["name"]
        inventory.files[name] = _read_file(obj)
        upload = obj["spec"]["request"].get("uploadName")
        if upload:
            inventory.by_upload[upload] = name
    return inventory


async def list_objects(
    kube: KubernetesClient, plural: str, **selectors: Any
) -> AsyncIterator[Object]:
    """Yield all objects of a kind; memory is that of a page."""
    async for page in list_pages(kube, plural, **selectors):
        for obj in page.items:
            yield obj


def _read_file(obj: Object) -> FileFacts:
    meta, request = obj["metadata"], obj["spec"]["request"]
    conditions = (obj.get("status") or {}).get("conditions") or ()
    leaving = meta.get("deletionTimestamp")
    return FileFacts(
        account=request["accountName"],
        purpose=request["purpose"],
        pool=pool_of(obj),
        bytes=request["bytes"],
        digest=digest_places({part["key"]: part["bytes"] for part in request["segments"]}),
        created=parse_time(meta["creationTimestamp"]).timestamp(),
        expiry=find_expiry(obj),
        leaving=parse_time(leaving).timestamp() if leaving else None,
        is_good=any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
    )


def _read_upload(obj: Object) -> UploadFacts:
    request = obj["spec"]["request"]
    member = read_member(obj)
    return UploadFacts(
        account=request["accountName"],
        bytes=request["bytes"],
        created=parse_time(obj["metadata"]["creationTimestamp"]).timestamp(),
        expiry=read_expiry(obj),
        member=member[0] if member else None,
        file=(obj["spec"].get("completion") or {}).get("fileName"),
    )


MOST_KEYS = 500
"""Stored objects deleted by one call."""


@dataclass(eq=False)
class FileStorage:
    """Changes of kube, bytes and ledger that the controllers of files and uploads share.

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
        except (CountersUnavailable, CountersStale) as error:
            _log.info("storage not released now", member=member, error=type(error).__name__)

    async def move(self, account: str, member: str, to: str) -> None:
        """Make a reservation the File's; if the ledger is away, the next quota check does."""
        try:
            await self.ledger.move(account, "files", member, to)
        except (CountersUnavailable, CountersStale) as error:
            _log.info("reservation not moved now", member=member, error=type(error).__name__)

    async def find_kept(self, upload: str, *, closing: str | None = None) -> frozenset[str]:
        """Return keys of all Files made of uploads of this name, except of the File `closing`.

        A name recurs with its Idempotency-Key once the object of the first Upload is removed, and
        both share one folder: the first one's File may exist for years.
        """
        selector, kept = f"spec.request.uploadName={upload}", set[str]()
        # without the CRD there are no Files
        with suppress(ObjectNotFound):
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
