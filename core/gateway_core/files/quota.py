"""What an account stores, claimed within its limits, and made again from the record when lost.

Used by whoever makes files and uploads: claim what is about to be recorded, write the object, then
confirm it. Limits are bytes of the pool (contract §3.2, §2.5).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

import structlog

from gateway_core.api.errors import TooLarge, Unavailable
from gateway_core.api.file import GatewayFile
from gateway_core.api.resource import Object
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.quota_counters import (
    Pool,
    StorageLedger,
    StorageStale,
    StorageUnavailable,
    Used,
)
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError, VersionExpired

WAIT_SECONDS = 5.0
"""How long a caller waits for a pool to be made again."""
PAUSE_SECONDS = 0.1
MOST_AT_ONCE = 4
_ATTEMPTS = 4
_RETRY_SECONDS = 5

_log = structlog.get_logger(__name__)


class StorageFull(TooLarge):
    """The account's storage does not hold it (contract §3.2); `most` files, if that is why."""

    code = "storage_limit_exceeded"

    def __init__(self, most: int | None = None) -> None:
        super().__init__(
            "The account's storage limit would be exceeded."
            if most is None
            else f"The account has {most} files and uploads, as many as it may have at once."
        )


class StorageGate:
    """Claims for one process and event loop; rebuilds a few pools at a time.

    `most` is how many files and uploads an account may have in a pool, whatever they take.
    Raises Unavailable where what an account stores is not known and cannot be made again in time.
    """

    def __init__(
        self,
        kube: KubernetesClient,
        ledger: StorageLedger,
        most: Mapping[Pool, int] = MappingProxyType({}),
    ) -> None:
        self._kube = kube
        self._ledger = ledger
        self._most = most
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._running: dict[tuple[str, Pool], asyncio.Task[None]] = {}

    async def claim(self, account: str, pool: Pool, member: str, size: int, limit: int) -> None:
        """Counts `size` bytes for `member`, once however often it is claimed. StorageFull."""
        deadline, most = time.monotonic() + WAIT_SECONDS, self._most.get(pool)
        while True:
            try:
                if await self._ledger.claim(account, pool, member, size, limit, most):
                    return
            except StorageStale:
                await self._wait_for(account, pool, deadline)
            except StorageUnavailable as error:
                raise _refuse(account, error) from error
            else:
                raise StorageFull(await self._read_reached(account, pool))

    async def check_room(self, account: str, pool: Pool, size: int, limit: int) -> None:
        """Whether a file of `size` bytes more would fit, before they are read. StorageFull."""
        used = await self.read_used(account, pool)
        reached = self._find_reached(pool, used)
        if reached is not None or used.bytes + size > limit:
            raise StorageFull(reached)

    async def read_used(self, account: str, pool: Pool) -> Used:
        """What the pool has."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return await self._ledger.read_used(account, pool)
            except StorageStale:
                await self._wait_for(account, pool, deadline)
            except StorageUnavailable as error:
                raise _refuse(account, error) from error

    async def confirm(self, account: str, pool: Pool, member: str, size: int, limit: int) -> None:
        """Makes sure of a claim after its object was created.

        StorageFull where it was lost and nothing is left: then the object has to be deleted again.
        """
        try:
            if not await self._ledger.confirm(account, pool, member, size, limit):
                raise StorageFull
        except StorageUnavailable as error:
            # what is lost with it is made again from the record, where the object is by now
            _log.warning("a claim was not confirmed", account=account, error=str(error))

    async def release(self, account: str, pool: Pool, member: str) -> None:
        """Frees a claim whose object was not made or is deleted; the operator does what fails."""
        try:
            await self._ledger.release(account, pool, member)
        except StorageUnavailable as error:
            _log.warning("a claim was not released", account=account, error=str(error))

    async def move(self, account: str, pool: Pool, member: str, to: str) -> None:
        """Has a claim stand under another name; the operator does what fails."""
        try:
            await self._ledger.move(account, pool, member, to)
        except StorageUnavailable as error:
            _log.warning("a claim was not moved", account=account, error=str(error))

    def _find_reached(self, pool: Pool, used: Used) -> int | None:
        """How many members the pool may have, if it has as many."""
        most = self._most.get(pool)
        return most if most is not None and used.members >= most else None

    async def _read_reached(self, account: str, pool: Pool) -> int | None:
        """The same of a pool that has refused a claim, as far as can be told now."""
        try:
            return self._find_reached(pool, await self._ledger.read_used(account, pool))
        except (StorageStale, StorageUnavailable):
            return None

    async def _wait_for(self, account: str, pool: Pool, deadline: float) -> None:
        """Returns when there was a rebuild that this process made or waited for. Unavailable."""
        task = self._running.get((account, pool))
        if task is None:
            task = asyncio.create_task(self._run(account, pool))
            self._running[account, pool] = task
            task.add_done_callback(lambda _: self._running.pop((account, pool), None))
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                # it goes on if its caller gives up
                await asyncio.shield(task)
        except (TimeoutError, KubernetesError, StorageUnavailable) as error:
            raise _refuse(account, error) from error

    async def _run(self, account: str, pool: Pool) -> None:
        async with self._slots:
            if not await rebuild_pool(self._kube, self._ledger, account, pool):
                # another process is at it, or it is there
                await asyncio.sleep(PAUSE_SECONDS)


async def rebuild_pool(
    kube: KubernetesClient, ledger: StorageLedger, account: str, pool: Pool
) -> bool:
    """Makes the pool again from the record; False where another process is at it or it is there.

    What is created, moved or deleted while the record is read is told to the rebuild by whoever
    does that (`StorageLedger.confirm`, `move`, `release`). Raises what the ports raise.
    """
    token = await ledger.begin_rebuild(account, pool)
    if token is None:
        return False

    async def renew() -> None:
        # many files take longer to read than a rebuild lives on its own
        if not await ledger.renew_rebuild(account, pool, token):
            raise _Lapsed

    try:
        members = await read_members(kube, account, pool, after_page=renew)
    except _Lapsed:
        return False
    except BaseException:
        # a process that cannot read the record must not keep one that can from it
        with suppress(StorageUnavailable):
            await ledger.abandon_rebuild(account, pool, token)
        raise
    return await ledger.finish_rebuild(account, pool, token, members)


class _Lapsed(Exception):
    """The rebuild is no more this process's."""


async def _do_nothing() -> None:
    pass


async def read_members(
    kube: KubernetesClient,
    account: str,
    pool: Pool,
    *,
    after_page: Callable[[], Awaitable[None]] = _do_nothing,
) -> dict[str, int]:
    """The members that the record says, as it was at one moment: object name -> bytes.

    Objects count until they are being deleted; an Upload by its declared bytes while it is pending,
    and under its File's name from its completion on. KubernetesUnavailable, VersionExpired.
    """
    for attempt in range(_ATTEMPTS):
        with suppress(*(() if attempt + 1 == _ATTEMPTS else (VersionExpired,))):
            return await _read_moment(_Reading(kube, after_page), account, pool)
    raise AssertionError("unreachable")


async def _read_moment(reading: "_Reading", account: str, pool: Pool) -> dict[str, int]:
    owned = f"spec.request.accountName={account}"
    if pool == "temporary":
        kind, _ = await reading.list_all(GatewayFile.plural, f"{owned},{_TEMPORARY}", "")
        return {name: size for name, size in map(_measure, kind) if size is not None}
    unsettled = f"{owned},status.work!=Settled"
    uploads, version = await reading.list_all(GatewayUpload.plural, unsettled, "")
    others = f"{owned},{_TEMPORARY.replace('=', '!=')}"
    files, _ = await reading.list_all(GatewayFile.plural, others, version)
    members: dict[str, int | None] = {}
    for upload in uploads:
        spec = upload["spec"]
        outcome = spec.get("outcome", "Pending")
        if outcome == "Pending":
            name, size = _measure(upload)
            members[name] = size
        elif outcome == "Completed":
            members[spec["completion"]["fileName"]] = spec["request"]["bytes"]
    # a File that is being deleted is none, whatever its Upload says
    members.update(map(_measure, files))
    return {name: size for name, size in members.items() if size is not None}


_TEMPORARY = "spec.request.purpose=temporary"


def _measure(obj: Object) -> tuple[str, int | None]:
    """The name, and the bytes if it is not being deleted."""
    meta = obj["metadata"]
    return meta["name"], None if "deletionTimestamp" in meta else obj["spec"]["request"]["bytes"]


class _Reading:
    """Lists of the record; `after_page` is awaited after each page."""

    def __init__(self, kube: KubernetesClient, after_page: Callable[[], Awaitable[None]]) -> None:
        self._kube = kube
        self._after_page = after_page

    async def list_all(
        self, plural: str, field_selector: str, version: str
    ) -> tuple[list[Object], str]:
        """All objects, as of `version` or of now, and which that is. Of specs, no segments."""
        found: list[Object] = []
        token: str | None = None
        while True:
            page = await self._kube.list_page(
                plural,
                token=token,
                field_selector=field_selector,
                at_version=version if not token else "",
            )
            await self._after_page()
            for obj in page.items:
                obj["spec"]["request"].pop("segments", None)
                found.append(obj)
            version = version or page.resource_version
            token = page.next_token
            if token is None:
                return found, version


def _refuse(account: str, error: Exception) -> Unavailable:
    _log.warning("what an account stores is not known", account=account, error=str(error))
    return Unavailable("The gateway cannot check storage limits now.", retry_after=_RETRY_SECONDS)
