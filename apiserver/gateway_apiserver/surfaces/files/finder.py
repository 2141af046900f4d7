"""Files found by their ids, and lists of them, as of now (contract §3.4, §0.5).

One file is read from the Kubernetes API. Lists come from this process's table, once it has seen
every file that any process has told of; where that is not known or takes too long, from the
Kubernetes API as well.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gateway_apiserver.surfaces.files.index import FileIndex, FileOrder, take
from gateway_apiserver.surfaces.files.models import FileQuery
from gateway_apiserver.surfaces.ids import check_id, unknown
from gateway_core.api.errors import Unavailable
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import FILE_PREFIX, IdMint, Ownership, read_order
from gateway_core.api.resource import Object
from gateway_core.concurrency import WaitLimit
from gateway_core.files.files import FileRecord, read_file
from gateway_core.files.quota_counters import StorageLedger
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import KubernetesError, ObjectNotFound, VersionExpired
from gateway_core.kube.informer import Informer
from gateway_core.redis.link import CountersUnavailable

READ_SECONDS = 5.0
LIST_SECONDS = 10.0
CATCH_UP_SECONDS = 1.0
"""How long a list waits for its table to see what it has to."""
LISTED_SELECTOR = "spec.request.purpose!=temporary"
"""Temporary files are in no list."""
_ATTEMPTS = 3


class FileFinder:
    """Reads files for the accounts that own them. `clock` gives Unix seconds."""

    def __init__(
        self,
        kube: KubernetesClient,
        table: Informer[FileRecord],
        ledger: StorageLedger,
        mint: IdMint,
        *,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._kube = kube
        self._table = table
        self._index = FileIndex(table)
        self._ledger = ledger
        self._mint = mint
        self._clock = clock

    async def find(self, account: str, wire_id: str, *, param: str | None = None) -> Object:
        """The GatewayFile of that id. NotFound if it is unknown, another account's or deleted.

        Raises Unavailable where the record cannot be read.
        """
        name = check_id(self._mint, FILE_PREFIX, account, wire_id, param=param)
        try:
            async with WaitLimit(READ_SECONDS):
                obj = await self._kube.get(GatewayFile.plural, name)
        except ObjectNotFound:
            raise unknown(FILE_PREFIX, wire_id, param=param) from None
        except (KubernetesError, TimeoutError) as error:
            raise Unavailable("Files cannot be read now.", retry_after=1) from error
        record = read_file(obj)
        if record is None or not self._is_shown(record, account):
            raise unknown(FILE_PREFIX, wire_id, param=param)
        return obj

    async def list_files(self, account: str, query: FileQuery) -> tuple[list[FileRecord], bool]:
        """A page of the account's files; and whether there are more. NotFound, Unavailable."""
        after = None
        if query.after is not None:
            # what was made for this account and is not there is a file that went
            check_id(self._mint, FILE_PREFIX, account, query.after, param="after")
            after = read_order(query.after)

        def is_wanted(record: FileRecord) -> bool:
            return self._is_shown(record, account) and query.purpose in (None, record.purpose)

        if await self._is_current(account):
            found = self._index.walk(account, query.order, after)
            return take(found, is_wanted, query.limit)
        records = await self._list_all(account)
        ordered = (records[name] for name in FileOrder(records).walk(query.order, after))
        return take(ordered, is_wanted, query.limit)

    def upsert(self, obj: Object) -> None:
        """Takes in a file that this process has just made."""
        self._table.upsert(obj)

    def _is_shown(self, record: FileRecord, account: str) -> bool:
        is_own = record.account == account and record.purpose != "temporary"
        return is_own and not record.is_gone(self._clock())

    async def _is_current(self, account: str) -> bool:
        """Whether the table has, soon enough, all that any process has told of."""
        try:
            version = await self._ledger.read_version(account)
        except CountersUnavailable:
            return False
        if version is None or not self._table.synced:
            return False
        return await self._table.wait_for_version(version, CATCH_UP_SECONDS)

    async def _list_all(self, account: str) -> dict[str, FileRecord]:
        """All files of the account as the record has them at one moment. Unavailable."""
        for attempt in range(_ATTEMPTS):
            try:
                async with asyncio.timeout(LIST_SECONDS):
                    return await self._list_once(account)
            except VersionExpired as error:
                if attempt + 1 == _ATTEMPTS:
                    raise Unavailable("Files cannot be listed now.", retry_after=1) from error
            except (KubernetesError, TimeoutError) as error:
                raise Unavailable("Files cannot be listed now.", retry_after=1) from error
        raise AssertionError("unreachable")

    async def _list_once(self, account: str) -> dict[str, FileRecord]:
        selector = f"spec.request.accountName={account},{LISTED_SELECTOR}"
        found: dict[str, FileRecord] = {}
        token: str | None = None
        while True:
            page = await self._kube.list_page(
                GatewayFile.plural, field_selector=selector, token=token
            )
            if token is None:
                await self._establish(account, page.resource_version)
            for obj in page.items:
                record = project_file(obj, self._mint)
                if record is not None:
                    found[record.name] = record
            if page.next_token is None:
                return found
            token = page.next_token

    async def _establish(self, account: str, version: str) -> None:
        """Has lists of tables do that have seen `version`, where it is not known what they have to.

        Told before the rest is read: if that takes too long, the next list has a table to look in.
        """
        # If it cannot be stored, the next list reads the Kubernetes API as well. If versions are
        # known, this one belongs to no file of the account, and lists would wait for it forever.
        with suppress(CountersUnavailable):
            if await self._ledger.read_version(account) is None:
                await self._ledger.establish_versions(account, int(version))


def project_file(obj: Object, mint: IdMint) -> FileRecord | None:
    """What lists show of a GatewayFile; None where it is going, or its id is not of the gateway's.

    An admin may name an object as the gateway does, but no client could ask for it (§0.4).
    """
    record = read_file(obj)
    if record is None:
        return None
    minted = mint.check(FILE_PREFIX, record.account, record.name)
    return record if minted is Ownership.MINTED else None
