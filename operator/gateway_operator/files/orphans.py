"""The object store against the record: bytes that nothing names go, files that lack bytes are told.

Shard 0's owner does it; two that do it at a time do no harm. The store is walked page by page in
the order of its keys, so what is one object's comes together, and it is compared with the record as
that was before. Bytes are written before the object that names them: what is missing then is looked
for again one by one, and what nobody names is left while it is young, and until its owner has been
asked for by name.

Bytes of an account that the record does not know are left alone: a gateway that is pointed at the
bucket of another one must remove nothing.
"""

from collections.abc import AsyncIterator
from datetime import timedelta

import structlog

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.file import GatewayFile
from gateway_core.api.resource import BATCHES_FOLDER, FILES_FOLDER, UPLOADS_FOLDER, is_put
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.addresses import TICKET_SECONDS
from gateway_core.files.uploads import is_settled
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_core.storage.content import FOLDERS, Owner, list_keys, read_owner
from gateway_core.storage.objects import Entry
from gateway_operator.files.intake import Intake, read_ready
from gateway_operator.files.inventory import Inventory, digest_places, list_objects, take_inventory
from gateway_operator.files.storage import MOST_KEYS, FileStorage

PUT_AGE = timedelta(seconds=2 * TICKET_SECONDS)
"""How old bytes that were put get, where those of others are kept for longer."""
LEAST_PUT_AGE = timedelta(seconds=TICKET_SECONDS + 300)
"""How old bytes are at least that nobody can confirm any more, nor is confirming just now."""
_OUTPUTS = ("outputFileName", "errorFileName")
"""What a batch writes, named in its status before there are bytes."""

_log = structlog.get_logger(__name__)


class OrphanRemoval:
    """Passes over everything. `orphan_seconds` is how old bytes without an owner have to be.

    Those that were put for a temporary file go after two hours at the latest, and not while they
    can be confirmed.
    """

    def __init__(self, tools: FileStorage, orphan_seconds: float) -> None:
        self._tools = tools
        self._intake = Intake(tools)
        self._orphan_age = timedelta(seconds=orphan_seconds)

    async def sweep(self) -> int:
        """One pass; how many orphans it removed. Raises what the ports raise."""
        oldest = self._tools.now() - self._orphan_age
        no_put = self._tools.now() - max(min(self._orphan_age, PUT_AGE), LEAST_PUT_AGE)
        survey = await take_inventory(self._tools.kube)
        batches, used = await self._list_batches()
        whole: set[str] = set()
        removed = 0
        for folder in FOLDERS:
            async for owner, entries in self._group(folder):
                file = self._find_file(survey, owner)
                if file is not None:
                    facts = survey.files[file]
                    if digest_places({e.key: e.bytes for e in entries}) == facts.digest:
                        whole.add(file)
                        continue
                if self._is_owned(survey, batches, used, owner):
                    continue
                due = [e for e in entries if e.modified < (no_put if is_put(e.key) else oldest)]
                if due and self._tools.accounts.get(owner.account) is not None:
                    removed += await self._remove(owner, due)
        await self._see_to_broken(survey, whole)
        return removed

    async def _list_batches(self) -> tuple[set[str], set[tuple[str, str]]]:
        """Names of all batches, and (folder, name) of what those with work left read and write."""
        names, used = set[str](), set[tuple[str, str]]()
        async for obj in list_objects(self._tools.kube, GatewayBatch.plural):
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
        """What is in a folder, by whose it is."""
        current: Owner | None = None
        entries: list[Entry] = []
        async for entry in self._tools.store.list_entries(folder):
            owner = read_owner(entry.key)
            if owner != current:
                if current is not None:
                    yield current, entries
                current, entries = owner, []
            entries.append(entry)
        if current is not None:
            yield current, entries

    def _find_file(self, survey: Inventory, owner: Owner) -> str | None:
        """The file that these bytes should be."""
        if owner.folder == BATCHES_FOLDER:
            return None
        name = survey.by_upload.get(owner.name) if owner.folder == UPLOADS_FOLDER else owner.name
        facts = survey.files.get(name) if name else None
        return name if facts is not None and facts.account == owner.account else None

    def _is_owned(
        self, survey: Inventory, batches: set[str], used: set[tuple[str, str]], owner: Owner
    ) -> bool:
        """Whether all of it belongs to something, whatever it is."""
        if (owner.folder, owner.name) in used:
            return True
        if owner.folder == BATCHES_FOLDER:
            return owner.name in batches
        return owner.folder == UPLOADS_FOLDER and owner.name in survey.uploads

    async def _remove(self, owner: Owner, due: list[Entry]) -> int:
        """Removes what the record, asked for the owner by name, does not name; how many."""
        kept = await self._find_kept(owner)
        if kept is None:
            return 0
        orphans = [entry for entry in due if entry.key not in kept]
        self._tools.failpoints.reach("before-orphan-removal")
        for start in range(0, len(orphans), MOST_KEYS):
            part = orphans[start : start + MOST_KEYS]
            await self._tools.store.delete_many(entry.key for entry in part)
            self._tools.metrics.orphans.labels(owner.folder.rstrip("/")).inc(len(part))
            self._tools.metrics.orphan_bytes.inc(sum(entry.bytes for entry in part))
        if orphans:
            _log.warning("bytes that nothing names removed", objects=len(orphans), **_tell(owner))
        return len(orphans)

    async def _find_kept(self, owner: Owner) -> frozenset[str] | None:
        """Keys of the owner's that something names; None for all of them."""
        if owner.folder == BATCHES_FOLDER:
            found = await self._tools.find(GatewayBatch.plural, owner.name)
            return frozenset() if found is None else None
        if owner.folder != UPLOADS_FOLDER:
            found = await self._tools.find(GatewayFile.plural, owner.name)
            return frozenset() if found is None else frozenset(list_keys(found))
        upload = await self._tools.find(GatewayUpload.plural, owner.name)
        if upload is not None and not is_settled(upload):
            return None
        return await self._tools.find_kept(owner.name)

    async def _see_to_broken(self, survey: Inventory, whole: set[str]) -> None:
        """Looks at files of which the store did not show everything, and at those told of before.

        What `Ready` says is written anew where it has changed.
        """
        now, broken = self._tools.now().timestamp(), 0
        for name, facts in survey.files.items():
            if (name in whole and facts.is_good) or not facts.is_there(now):
                continue
            obj = await self._tools.find(GatewayFile.plural, name)
            if obj is None or obj["metadata"].get("deletionTimestamp"):
                continue
            try:
                ready = read_ready(await self._intake.take_in(obj))
            except (WriteConflict, ObjectNotFound):
                continue
            if ready is not None and ready["reason"] == Reason.BYTES_MISSING:
                broken += 1
                _log.error("a file lacks bytes", object=name, problem=ready["message"])
        self._tools.metrics.files_broken.set(broken)


def _tell(owner: Owner) -> dict[str, str]:
    return {"folder": owner.folder, "account": owner.account, "owner": owner.name}
