"""Compares the object store with the record: removes orphaned bytes, reports files that lack bytes.

Run by the owner of shard 0; two concurrent runs do no harm. The store is listed page by page in the
order of its keys, so the bytes of one object come together, and compared with the record as it was
before. Bytes are written before the object that names them: missing ones are looked for again one
by one, and unnamed ones are removed only when they are old and their owner was read by name.

Bytes of an account that the record does not know are left alone: a gateway that is pointed at the
bucket of another one must remove nothing.
"""

from collections.abc import AsyncIterator
from datetime import timedelta

import structlog

from gateway_core.api.account import GatewayAccount
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.file import GatewayFile
from gateway_core.api.resource import BATCHES_FOLDER, FILES_FOLDER, UPLOADS_FOLDER, is_put
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.addresses import TICKET_SECONDS
from gateway_core.files.uploads import is_settled
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_core.kube.informer import Cache
from gateway_core.storage.content import FOLDERS, Owner, list_keys, read_owner
from gateway_core.storage.objects import Entry
from gateway_operator.files.intake import Intake, read_ready
from gateway_operator.files.storage import (
    FileStorage,
    Inventory,
    digest_places,
    list_objects,
    take_inventory,
)

PUT_AGE = timedelta(seconds=2 * TICKET_SECONDS)
"""The age of unconfirmed bytes of a temporary file, where other orphans are kept longer."""
LEAST_PUT_AGE = timedelta(seconds=TICKET_SECONDS + 300)
"""The least age of bytes that can no longer be confirmed, and are not being confirmed now."""
_OUTPUTS = ("outputFileName", "errorFileName")
"""Files of a batch, named in its status before they have bytes."""

_log = structlog.get_logger(__name__)


class OrphanRemoval:
    """Sweeps over the store. `orphan_seconds` is the least age of orphans.

    Bytes that a client has put for a temporary file are removed after two hours at the latest, and
    not while they can be confirmed.
    """

    def __init__(
        self,
        storage: FileStorage,
        intake: Intake,
        accounts: Cache[GatewayAccount],
        orphan_seconds: float,
    ) -> None:
        self._storage = storage
        self._context = storage.context
        self._intake = intake
        self._accounts = accounts
        self._orphan_age = timedelta(seconds=orphan_seconds)

    async def sweep(self) -> int:
        """Remove orphans; how many."""
        oldest = self._context.now() - self._orphan_age
        no_put = self._context.now() - max(min(self._orphan_age, PUT_AGE), LEAST_PUT_AGE)
        inventory = await take_inventory(self._context.kube)
        batches, used = await self._list_batches()
        whole: set[str] = set()
        removed = 0
        for folder in FOLDERS:
            async for owner, entries in self._group(folder):
                file = self._find_file(inventory, owner)
                if file is not None:
                    facts = inventory.files[file]
                    if digest_places({e.key: e.bytes for e in entries}) == facts.digest:
                        whole.add(file)
                        continue
                if self._is_owned(inventory, batches, used, owner):
                    continue
                due = [e for e in entries if e.modified < (no_put if is_put(e.key) else oldest)]
                if due and self._accounts.get(owner.account) is not None:
                    removed += await self._remove(owner, due)
        await self._recheck_broken(inventory, whole)
        return removed

    async def _list_batches(self) -> tuple[set[str], set[tuple[str, str]]]:
        """Names of all batches; and (folder, name) of what open batches read and write."""
        names, used = set[str](), set[tuple[str, str]]()
        async for obj in list_objects(self._context.kube, GatewayBatch.plural):
            names.add(obj["metadata"]["name"])
            status = obj.get("status") or {}
            if status.get("work") == "Settled":
                continue
            used |= {(FILES_FOLDER, status[f]) for f in _OUTPUTS if status.get(f)}
            for segment in obj["spec"]["request"].get("segments") or ():
                owner = read_owner(segment["key"])
                if owner is not None:
                    used.add((owner.folder, owner.name))
        return names, used

    async def _group(self, folder: str) -> AsyncIterator[tuple[Owner, list[Entry]]]:
        """The entries of a folder by their owner."""
        current: Owner | None = None
        entries: list[Entry] = []
        async for entry in self._context.store.list_entries(folder):
            owner = read_owner(entry.key)
            if owner != current:
                if current is not None:
                    yield current, entries
                current, entries = owner, []
            entries.append(entry)
        if current is not None:
            yield current, entries

    def _find_file(self, inventory: Inventory, owner: Owner) -> str | None:
        """The file that these bytes should belong to."""
        if owner.folder == BATCHES_FOLDER:
            return None
        name = inventory.by_upload.get(owner.name) if owner.folder == UPLOADS_FOLDER else owner.name
        facts = inventory.files.get(name) if name else None
        return name if facts is not None and facts.account == owner.account else None

    def _is_owned(
        self, inventory: Inventory, batches: set[str], used: set[tuple[str, str]], owner: Owner
    ) -> bool:
        """Whether all bytes of the owner belong to a batch or an open Upload."""
        if (owner.folder, owner.name) in used:
            return True
        if owner.folder == BATCHES_FOLDER:
            return owner.name in batches
        return owner.folder == UPLOADS_FOLDER and owner.name in inventory.uploads

    async def _remove(self, owner: Owner, due: list[Entry]) -> int:
        """Remove what the owner, read by name, does not name; how many."""
        kept = await self._find_kept(owner)
        if kept is None:
            return 0
        orphans = [entry for entry in due if entry.key not in kept]
        self._context.failpoints.reach("before-orphan-removal")
        if orphans:
            await self._context.store.delete_many(entry.key for entry in orphans)
            metrics = self._context.metrics
            metrics.orphans.labels(owner.folder.rstrip("/")).inc(len(orphans))
            metrics.orphan_bytes.inc(sum(entry.bytes for entry in orphans))
            _log.warning(
                "bytes that nothing names removed", objects=len(orphans), **_describe(owner)
            )
        return len(orphans)

    async def _find_kept(self, owner: Owner) -> frozenset[str] | None:
        """Keys of the owner that are in use; None for all of them."""
        if owner.folder == BATCHES_FOLDER:
            found = await self._storage.find(GatewayBatch.plural, owner.name)
            return frozenset() if found is None else None
        if owner.folder != UPLOADS_FOLDER:
            found = await self._storage.find(GatewayFile.plural, owner.name)
            return frozenset() if found is None else frozenset(list_keys(found))
        upload = await self._storage.find(GatewayUpload.plural, owner.name)
        if upload is not None and not is_settled(upload):
            return None
        return await self._storage.find_kept(owner.name)

    async def _recheck_broken(self, inventory: Inventory, whole: set[str]) -> None:
        """Check files that lacked bytes in the listing, and those whose `Ready` is not True."""
        now, broken = self._context.now().timestamp(), 0
        for name, facts in inventory.files.items():
            if (name in whole and facts.is_good) or not facts.is_there(now):
                continue
            obj = await self._storage.find(GatewayFile.plural, name)
            if obj is None or obj["metadata"].get("deletionTimestamp"):
                continue
            try:
                ready = read_ready(await self._intake.check(obj))
            except (WriteConflict, ObjectNotFound):
                continue
            if ready is not None and ready["reason"] == Reason.BYTES_MISSING:
                broken += 1
                _log.error("a file lacks bytes", object=name, problem=ready["message"])
        self._context.metrics.files_broken.set(broken)


def _describe(owner: Owner) -> dict[str, str]:
    return {"folder": owner.folder, "account": owner.account, "owner": owner.name}
