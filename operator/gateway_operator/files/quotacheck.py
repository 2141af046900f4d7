"""The storage ledger against the record: every member stands for an object, every object has one.

Shard 0's owner does it; two that do it at a time do no harm. Objects are claimed before they are
made and released once they are being deleted, so what differs is looked at again by name before
anything is done, and only if it is older than a create can take; what is to be put as a temporary
file, than it can be put, and what was put, than its ticket is good for. An object counts from its
creation to its `deletionTimestamp`, also while its life is over and nobody has deleted it. A stray
member is released. Where one is missing, or has other bytes than its object, the account's pool is
marked stale, and made again from the record before anything more is claimed (I6).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Set

import structlog

from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import read_order
from gateway_core.api.resource import TEMPORARY_FOLDER, is_put
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.addresses import PUT_SECONDS, TICKET_SECONDS
from gateway_core.files.quota_counters import Claim, Pool, StorageStale
from gateway_core.files.uploads import is_settled, read_member
from gateway_core.storage.content import read_owner
from gateway_core.storage.objects import StoreUnavailable
from gateway_operator.files.inventory import Inventory, take_inventory
from gateway_operator.files.storage import FileStorage

CLAIM_SECONDS = 120.0
"""How long a claim may be without an object: longer than a create can be under way."""
LONGEST_PUT_SECONDS = 600.0
"""How long a put may well take; the room of a longer one is claimed again when it is confirmed."""
LATE_SECONDS = 60.0
"""How long something may be due before it is taken up here: no event seems to have told of it."""
POOLS: tuple[Pool, ...] = ("files", "temporary")

_log = structlog.get_logger(__name__)

Members = Mapping[str, int]


class QuotaCheck:
    """Passes over all accounts. `take_up_…` has a file or an Upload looked at by its controller."""

    def __init__(
        self,
        tools: FileStorage,
        take_up_file: Callable[[str], None],
        take_up_upload: Callable[[str], None],
        *,
        claim_seconds: float = CLAIM_SECONDS,
    ) -> None:
        self._tools = tools
        self._take_up_file = take_up_file
        self._take_up_upload = take_up_upload
        self._claim_age = claim_seconds

    async def sweep(self) -> int:
        """One pass; how many differences were mended. Raises what the ports raise."""
        survey = await take_inventory(self._tools.kube)
        self._take_up_late(survey)
        expected = self._list_members(survey)
        self._show(survey)
        accounts = {name for name, _ in self._tools.accounts.items()}
        mended = 0
        for account in sorted(accounts | {account for account, _ in expected}):
            for pool in POOLS:
                members = expected.get((account, pool), {})
                try:
                    mended += await self._prove(survey, account, pool, members)
                except StorageStale:
                    # it is made from the record, so there is nothing to compare
                    continue
        return mended

    def _take_up_late(self, survey: Inventory) -> None:
        now = self._tools.now().timestamp()
        for name, file in survey.files.items():
            end = file.leaving if file.leaving is not None else file.expiry
            if end is not None and now - end > LATE_SECONDS:
                self._take_up_file(name)
        for name, upload in survey.uploads.items():
            is_late = now - upload.expiry > LATE_SECONDS
            if is_late or upload.member != name:
                self._take_up_upload(name)

    def _list_members(self, survey: Inventory) -> dict[tuple[str, Pool], dict[str, int]]:
        """What the ledger should have, by account and pool; what is older than a create can take.

        Of an Upload that is being settled either name may stand there, so neither is asked for.
        """
        now = self._tools.now().timestamp()
        settling = _list_settling(survey)
        found: defaultdict[tuple[str, Pool], dict[str, int]] = defaultdict(dict)
        for name, file in survey.files.items():
            is_old = now - file.created >= self._claim_age
            if is_old and file.leaving is None and name not in settling:
                found[file.account, file.pool][name] = file.bytes
        for name, upload in survey.uploads.items():
            if upload.member == name and self._claim_age <= now - upload.created:
                found[upload.account, "files"][name] = upload.bytes
        return dict(found)

    def _show(self, survey: Inventory) -> None:
        now = self._tools.now().timestamp()
        stored = Counter[str](files=0, temporary=0, reserved=0)
        files = Counter[str](user_data=0, batch=0, batch_output=0, temporary=0)
        for file in survey.files.values():
            if file.is_there(now):
                stored[file.pool] += file.bytes
                files[file.purpose] += 1
        for name, upload in survey.uploads.items():
            if upload.member == name:
                stored["reserved"] += upload.bytes
        self._tools.metrics.show_stored(stored, files)

    async def _prove(self, survey: Inventory, account: str, pool: Pool, members: Members) -> int:
        claims = {c.member: c for c in await self._tools.ledger.list_claims(account, pool, 0)}
        mended, known = 0, members.keys() | _list_settling(survey)
        unknown = {
            claim.member
            for claim in claims.values()
            if claim.member not in known and claim.age >= self._claim_age
        }
        if pool == "temporary":
            unknown -= await self._find_prepared(account, unknown)
        for member in unknown:
            if await self._find_member(account, member) is None:
                await self._tools.ledger.release(account, pool, member)
                self._note("stray", account, pool, member)
                mended += 1
        kind, name = await self._find_difference(account, claims, members)
        if kind is not None:
            await self._tools.ledger.mark_stale(account, pool)
            self._note(kind, account, pool, name)
            mended += 1
        return mended

    async def _find_prepared(self, account: str, names: Set[str]) -> set[str]:
        """Those of `names` that a client may still put, or has put and may still confirm.

        A name tells when it was prepared, and the place of its bytes who has stored them: a call
        that was killed before it made its object has them in another one than a client.
        """
        now = self._tools.now().timestamp()
        ages = {name: now - read_order(name) / 2**48 / 1000 for name in names}
        young = {
            n for n, age in ages.items() if -CLAIM_SECONDS < age < TICKET_SECONDS + CLAIM_SECONDS
        }
        if not young:
            return young
        put, stored = set[str](), set[str]()
        try:
            async for entry in self._tools.store.list_entries(f"{TEMPORARY_FOLDER}{account}/"):
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
        """The first object that the ledger has not, or not with its bytes: `missing` or `size`."""
        for name, size in members.items():
            claim = claims.get(name)
            if claim is not None and claim.bytes == size:
                continue
            if await self._find_member(account, name) == name:
                return ("missing" if claim is None else "size"), name
        return None, ""

    async def _find_member(self, account: str, member: str) -> str | None:
        """The member that stands for the object of that name now; None where there is none.

        Of an Upload whose outcome is not followed up yet it is any: its settlement will see to it.
        """
        file = await self._tools.find(GatewayFile.plural, member)
        if file is not None:
            gone = file["metadata"].get("deletionTimestamp")
            owned = file["spec"]["request"]["accountName"] == account
            return member if owned and not gone else None
        upload = await self._tools.find(GatewayUpload.plural, member)
        if upload is None or is_settled(upload):
            return None
        if upload["spec"]["request"]["accountName"] != account:
            return None
        found = read_member(upload)
        return found[0] if found is not None else None

    def _note(self, kind: str, account: str, pool: Pool, member: str) -> None:
        self._tools.metrics.quota_repairs.labels(kind).inc()
        _log.warning(
            "the storage ledger differs", kind=kind, account=account, pool=pool, member=member
        )


def _list_settling(survey: Inventory) -> set[str]:
    """The files of uploads that are completed and not settled."""
    return {upload.file for upload in survey.uploads.values() if upload.file}
