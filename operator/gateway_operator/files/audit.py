"""The audits of the object store and of the storage ledger against the Kubernetes API.

Both are run by the owner of shard 0; two concurrent runs do no harm.

The audit of the store lists it page by page in the order of its keys, so the bytes of one object
come together, and compares it with the objects as they were before. Bytes are written before the
object that names them: missing ones are looked for again one by one, and unnamed ones are removed
only when they are old and their owner was read by name. Bytes of an unknown account stay: a gateway
that is pointed at the bucket of another one must remove nothing.

The audit of the ledger compares its members with the objects. Members are claimed before their
object is created and released once it is being deleted. So a difference is repaired only after the
object was read by name, and if it is older than a create can take; for a temporary file, than its
put may take and its ticket is valid. An object counts from its creation to its `deletionTimestamp`,
also if it has expired and is not deleted yet. A stray member is released. Where a member is
missing, or has another size than its object, the account's pool is marked stale, and rebuilt from
the objects before the next claim (I6).
"""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Set
from datetime import timedelta

import structlog

from gateway_core.api.account import GatewayAccount
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import read_order
from gateway_core.api.resource import (
    BATCHES_FOLDER,
    FILES_FOLDER,
    TEMPORARY_FOLDER,
    UPLOADS_FOLDER,
    is_put,
)
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.addresses import PUT_SECONDS, TICKET_SECONDS
from gateway_core.files.quota_counters import Claim, Pool
from gateway_core.files.uploads import is_settled, read_member
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_core.kube.informer import Cache
from gateway_core.redis.link import CountersStale
from gateway_core.storage.content import FOLDERS, Owner, list_keys, read_owner
from gateway_core.storage.objects import Entry, StoreUnavailable
from gateway_operator.files.intake import Intake, read_ready
from gateway_operator.files.storage import (
    FileStorage,
    Inventory,
    digest_places,
    list_objects,
    take_inventory,
)

_log = structlog.get_logger(__name__)


PUT_AGE = timedelta(seconds=2 * TICKET_SECONDS)
"""The age of unconfirmed bytes of a temporary file, where other orphans are kept longer."""
LEAST_PUT_AGE = timedelta(seconds=TICKET_SECONDS + 300)
"""The least age of bytes that can no longer be confirmed, and are not being confirmed now."""
_OUTPUTS = ("outputFileName", "errorFileName")
"""Files of a batch, named in its status before they have bytes."""


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
        """Return names of all batches; and (folder, name) of what open batches read and write."""
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
        """Yield the entries of a folder by their owner."""
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
        """Return the file that these bytes should belong to."""
        if owner.folder == BATCHES_FOLDER:
            return None
        name = inventory.by_upload.get(owner.name) if owner.folder == UPLOADS_FOLDER else owner.name
        facts = inventory.files.get(name) if name else None
        return name if facts is not None and facts.account == owner.account else None

    def _is_owned(
        self, inventory: Inventory, batches: set[str], used: set[tuple[str, str]], owner: Owner
    ) -> bool:
        """Return whether all bytes of the owner belong to a batch or an open Upload."""
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
        """Return keys of the owner that are in use; None for all of them."""
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


CLAIM_SECONDS = 120.0
"""How long a claim may lack an object: longer than a create can take."""
LONGEST_PUT_SECONDS = 600.0
"""How long a put may take; the quota of a longer one is claimed again when it is confirmed."""
LATE_SECONDS = 60.0
"""How long an object may be overdue before it is rechecked: its event seems to be lost."""
POOLS: tuple[Pool, ...] = ("files", "temporary")


Members = Mapping[str, int]


class QuotaCheck:
    """Sweeps over all accounts. `recheck_…` has a file or an Upload reconciled."""

    def __init__(
        self,
        storage: FileStorage,
        accounts: Cache[GatewayAccount],
        recheck_file: Callable[[str], None],
        recheck_upload: Callable[[str], None],
        *,
        claim_seconds: float = CLAIM_SECONDS,
    ) -> None:
        self._storage = storage
        self._context = storage.context
        self._accounts = accounts
        self._recheck_file = recheck_file
        self._recheck_upload = recheck_upload
        self._claim_age = claim_seconds

    async def sweep(self) -> int:
        """Repair differences; how many."""
        inventory = await take_inventory(self._context.kube)
        self._recheck_overdue(inventory)
        expected = self._list_members(inventory)
        self._show(inventory)
        accounts = {name for name, _ in self._accounts.items()}
        repaired = 0
        for account in sorted(accounts | {account for account, _ in expected}):
            for pool in POOLS:
                members = expected.get((account, pool), {})
                try:
                    repaired += await self._compare(inventory, account, pool, members)
                except CountersStale:
                    # it is rebuilt from the objects, so there is nothing to compare
                    continue
        return repaired

    def _recheck_overdue(self, inventory: Inventory) -> None:
        now = self._context.now().timestamp()
        for name, file in inventory.files.items():
            end = file.leaving if file.leaving is not None else file.expiry
            if end is not None and now - end > LATE_SECONDS:
                self._recheck_file(name)
        for name, upload in inventory.uploads.items():
            is_late = now - upload.expiry > LATE_SECONDS
            if is_late or upload.member != name:
                self._recheck_upload(name)

    def _list_members(self, inventory: Inventory) -> dict[tuple[str, Pool], dict[str, int]]:
        """Return the expected members by account and pool, of objects older than a create can take.

        An Upload that is being settled may be a member by either name, so neither is expected.
        """
        now = self._context.now().timestamp()
        settling = _list_settling(inventory)
        found: defaultdict[tuple[str, Pool], dict[str, int]] = defaultdict(dict)
        for name, file in inventory.files.items():
            is_old = now - file.created >= self._claim_age
            if is_old and file.leaving is None and name not in settling:
                found[file.account, file.pool][name] = file.bytes
        for name, upload in inventory.uploads.items():
            if upload.member == name and self._claim_age <= now - upload.created:
                found[upload.account, "files"][name] = upload.bytes
        return dict(found)

    def _show(self, inventory: Inventory) -> None:
        now = self._context.now().timestamp()
        stored = Counter[str](files=0, temporary=0, reserved=0)
        files = Counter[str](user_data=0, batch=0, batch_output=0, temporary=0)
        for file in inventory.files.values():
            if file.is_there(now):
                stored[file.pool] += file.bytes
                files[file.purpose] += 1
        for name, upload in inventory.uploads.items():
            if upload.member == name:
                stored["reserved"] += upload.bytes
        self._context.metrics.show_stored(stored, files)

    async def _compare(
        self, inventory: Inventory, account: str, pool: Pool, members: Members
    ) -> int:
        claims = {c.member: c for c in await self._storage.ledger.list_claims(account, pool, 0)}
        repaired, known = 0, members.keys() | _list_settling(inventory)
        unknown = {
            claim.member
            for claim in claims.values()
            if claim.member not in known and claim.age >= self._claim_age
        }
        if pool == "temporary":
            unknown -= await self._find_prepared(account, unknown)
        for member in unknown:
            if await self._find_member(account, member) is None:
                await self._storage.ledger.release(account, pool, member)
                self._note("stray", account, pool, member)
                repaired += 1
        kind, name = await self._find_difference(account, claims, members)
        if kind is not None:
            await self._storage.ledger.mark_stale(account, pool)
            self._note(kind, account, pool, name)
            repaired += 1
        return repaired

    async def _find_prepared(self, account: str, names: Set[str]) -> set[str]:
        """Return those of `names` that a client may still put, or has put and may still confirm.

        A name contains the time it was prepared; and the key of its bytes shows who stored them: a
        call that was killed before it made its object uses another key than a client.
        """
        now = self._context.now().timestamp()
        ages = {name: now - read_order(name) / 2**48 / 1000 for name in names}
        young = {
            n for n, age in ages.items() if -CLAIM_SECONDS < age < TICKET_SECONDS + CLAIM_SECONDS
        }
        if not young:
            return young
        put, stored = set[str](), set[str]()
        try:
            async for entry in self._context.store.list_entries(f"{TEMPORARY_FOLDER}{account}/"):
                owner = read_owner(entry.key)
                if owner is not None and owner.name in young:
                    (put if is_put(entry.key) else stored).add(owner.name)
        except StoreUnavailable:
            return young
        return put | {
            name for name in young - stored if ages[name] < PUT_SECONDS + LONGEST_PUT_SECONDS
        }

    async def _find_difference(
        self, account: str, claims: Mapping[str, Claim], members: Members
    ) -> tuple[str | None, str]:
        """Return the first object that differs from the ledger: `missing`, or another `size`."""
        for name, size in members.items():
            claim = claims.get(name)
            if claim is not None and claim.bytes == size:
                continue
            if await self._find_member(account, name) == name:
                return ("missing" if claim is None else "size"), name
        return None, ""

    async def _find_member(self, account: str, member: str) -> str | None:
        """Return the member of the object of that name now; None where there is none."""
        file = await self._storage.find(GatewayFile.plural, member)
        if file is not None:
            gone = file["metadata"].get("deletionTimestamp")
            owned = file["spec"]["request"]["accountName"] == account
            return member if owned and not gone else None
        upload = await self._storage.find(GatewayUpload.plural, member)
        if upload is None or is_settled(upload):
            return None
        if upload["spec"]["request"]["accountName"] != account:
            return None
        found = read_member(upload)
        return found[0] if found is not None else None

    def _note(self, kind: str, account: str, pool: Pool, member: str) -> None:
        self._context.metrics.quota_repairs.labels(kind).inc()
        _log.warning(
            "the storage ledger differs", kind=kind, account=account, pool=pool, member=member
        )


def _list_settling(inventory: Inventory) -> set[str]:
    """Return the files of uploads that are completed and not settled."""
    return {upload.file for upload in inventory.uploads.values() if upload.file}
