"""Files found by id, and lists of them, as of now (contract §3.4, §0.5).

One file is read from the Kubernetes API. Lists come from the informer of this process, once it has
seen every version that any process has announced; if that is unknown or takes too long, from the
Kubernetes API as well.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice

from gateway_apiserver.surfaces.files.models import FileQuery
from gateway_apiserver.surfaces.validation import check_id, unknown
from gateway_core.accounts.records import SILENT_SECONDS
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
from gateway_core.kube.informer import Cache, Informer
from gateway_core.kube.lists import Order, list_pages
from gateway_core.redis.link import CountersUnavailable


class FileOrder:
    """Names of files ordered by creation.

    Two lists side by side: a tuple for each of a hundred thousand files would be twice as large.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        ordered = sorted((read_order(name), name) for name in names)
        self._orders = [order for order, _ in ordered]
        self._names = [name for _, name in ordered]

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """Add a new name."""
        order = read_order(name)
        place = bisect_right(self._orders, order)
        self._orders.insert(place, order)
        self._names.insert(place, name)

    def remove(self, name: str) -> None:
        """Remove a known name."""
        place = self._names.index(name, bisect_left(self._orders, read_order(name)))
        del self._orders[place], self._names[place]

    def walk(self, order: Order, after: int | None) -> Iterator[str]:
        """Return names after a position (see `read_order`). Consume it before the next change."""
        if order == "asc":
            begin = 0 if after is None else bisect_right(self._orders, after)
            return islice(self._names, begin, None)
        end = len(self._names) if after is None else bisect_left(self._orders, after)
        return (self._names[index] for index in range(end - 1, -1, -1))


class FileIndex:
    """Files of each account by creation, kept up to date from the informer `table`."""

    def __init__(self, table: Cache[FileRecord]) -> None:
        self._table = table
        self._accounts: dict[str, str] = {}
        self._by_account: dict[str, FileOrder] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def walk(self, account: str, order: Order, after: int | None) -> Iterator[FileRecord]:
        """Yield the account's files after a position. Consume it before the next change."""
        for name in self._by_account.get(account, FileOrder()).walk(order, after):
            record = self._table.get(name)
            if record is not None:
                yield record

    def _follow(self, name: str) -> None:
        record, account = self._table.get(name), self._accounts.get(name)
        if record is not None and account is None:
            self._accounts[name] = record.account
            self._by_account.setdefault(record.account, FileOrder()).add(name)
        elif record is None and account is not None:
            del self._accounts[name]
            files = self._by_account[account]
            files.remove(name)
            if not files:
                del self._by_account[account]


def take(
    records: Iterable[FileRecord], wanted: Callable[[FileRecord], bool], limit: int
) -> tuple[list[FileRecord], bool]:
    """Return the first `limit` wanted records; and whether there are more."""
    found = list(islice(filter(wanted, records), limit + 1))
    return found[:limit], len(found) > limit


READ_SECONDS = 5.0
LIST_SECONDS = 10.0
CATCH_UP_SECONDS = 1.0
"""How long a list waits for the informer to see the announced version."""
PAGE_SECONDS = 0.05
"""The same of a list for a page."""
LISTED_SELECTOR = "spec.request.purpose!=temporary"
"""Temporary files are in no list."""
_ATTEMPTS = 3


class FileFinder:
    """Finds and lists files of their accounts. `clock` gives Unix seconds."""

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
        """Return the GatewayFile of that id.

        Raises NotFound if it is unknown, another account's or deleted.

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

    async def list_files(
        self, account: str, query: FileQuery, *, for_page: bool = False
    ) -> tuple[list[FileRecord], bool]:
        """Return a page of the account's files; and whether there are more. NotFound, Unavailable.

        `for_page`: of what the informer has, with the delay of a watch, also where it may lack
        versions that were announced: to list thousands of files takes seconds.
        """
        after = None
        if query.after is not None:
            # a genuine id without an object is that of a deleted file
            check_id(self._mint, FILE_PREFIX, account, query.after, param="after")
            after = read_order(query.after)

        def is_wanted(record: FileRecord) -> bool:
            return self._is_shown(record, account) and query.purpose in (None, record.purpose)

        seconds = PAGE_SECONDS if for_page else CATCH_UP_SECONDS
        follows = for_page and self._table.synced and self._table.staleness <= SILENT_SECONDS
        if await self._is_current(account, seconds) or follows:
            found = self._index.walk(account, query.order, after)
            return take(found, is_wanted, query.limit)
        records = await self._list_all(account)
        ordered = (records[name] for name in FileOrder(records).walk(query.order, after))
        return take(ordered, is_wanted, query.limit)

    def upsert(self, obj: Object) -> None:
        """Put a file that this process has just created into the informer."""
        self._table.upsert(obj)

    def _is_shown(self, record: FileRecord, account: str) -> bool:
        is_own = record.account == account and record.purpose != "temporary"
        return is_own and not record.is_gone(self._clock())

    async def _is_current(self, account: str, seconds: float) -> bool:
        """Return whether the informer soon has all versions that any process has announced."""
        try:
            version = await self._ledger.read_version(account)
        except CountersUnavailable:
            return False
        if version is None or not self._table.synced:
            return False
        return await self._table.wait_for_version(version, seconds)

    async def _list_all(self, account: str) -> dict[str, FileRecord]:
        """Return all files of the account as of one version, from the Kubernetes API.

        Raises Unavailable.
        """
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
        is_first = True
        async for page in list_pages(self._kube, GatewayFile.plural, field_selector=selector):
            if is_first:
                await self._establish(account, page.resource_version)
            is_first = False
            for obj in page.items:
                record = project_file(obj, self._mint)
                if record is not None:
                    found[record.name] = record
        return found

    async def _establish(self, account: str, version: str) -> None:
        """If the ledger knows no version of the account, let informers that saw `version` answer.

        Before the rest is read: if that takes too long, the next list can use an informer.
        """
        # If it cannot be stored, the next list reads the Kubernetes API as well. If versions are
        # known, this one belongs to no file of the account, and lists would wait for it forever.
        with suppress(CountersUnavailable):
            if await self._ledger.read_version(account) is None:
                await self._ledger.establish_versions(account, int(version))


def read_found(obj: Object) -> FileRecord:
    """Return the record of a GatewayFile that was found. NotFound if it is being deleted."""
    record = read_file(obj)
    if record is None:
        raise unknown(FILE_PREFIX, obj["metadata"]["name"])
    return record


def project_file(obj: Object, mint: IdMint) -> FileRecord | None:
    """Return the record of a GatewayFile; None if it is being deleted, or its id is not minted.

    An admin may choose a name like the gateway's, but no client could request it (§0.4).
    """
    record = read_file(obj)
    if record is None:
        return None
    minted = mint.check(FILE_PREFIX, record.account, record.name)
    return record if minted is Ownership.MINTED else None
