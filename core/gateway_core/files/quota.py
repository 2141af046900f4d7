"""Storage quota of accounts: claims within their limits, rebuilt from the objects when lost.

To create a file or upload: claim its bytes, create the object, confirm the claim. Limits are bytes
of a pool (contract §3.2, §2.5).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType

import structlog

from gateway_core.api.errors import TooLarge, Unavailable
from gateway_core.api.file import GatewayFile
from gateway_core.api.resource import Object
from gateway_core.api.upload import GatewayUpload
from gateway_core.concurrency import SingleFlight
from gateway_core.files.quota_counters import Pool, StorageLedger, Used
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError, VersionExpired
from gateway_core.kube.lists import list_all
from gateway_core.redis.link import CountersStale, CountersUnavailable

WAIT_SECONDS = 5.0
"""How long a caller waits for the rebuild of a pool."""
PAUSE_SECONDS = 0.1
MOST_AT_ONCE = 4
_ATTEMPTS = 4
_RETRY_SECONDS = 5
_PURPOSE = "spec.request.purpose"

_log = structlog.get_logger(__name__)


class StorageFull(TooLarge):
    """The storage limit would be exceeded (contract §3.2), or the number of files, `most`."""

    code = "storage_limit_exceeded"

    def __init__(self, most: int | None = None) -> None:
        super().__init__(
            "The account's storage limit would be exceeded."
            if most is None
            else f"The account has {most} files and uploads, as many as it may have at once."
        )


class StorageQuota:
    """Claims of one process and event loop; rebuilds a few pools at a time.

    `most` is the number of files and uploads that an account may have in a pool. Raises Unavailable
    where the pool is unknown and cannot be rebuilt in time.
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
        self._running = SingleFlight[None]()

    async def claim(self, account: str, pool: Pool, member: str, size: int, limit: int) -> None:
        """Claim `size` bytes for `member`, idempotently. StorageFull."""
        deadline, most = time.monotonic() + WAIT_SECONDS, self._most.get(pool)
        while True:
            try:
                if await self._ledger.claim(account, pool, member, size, limit, most):
                    return
            except CountersStale:
                await self._wait_for(account, pool, deadline)
            except CountersUnavailable as error:
                raise _refuse(account, error) from error
            else:
                # the reason for the message is read afterwards, and may be gone by then
                raise StorageFull(await self._read_reached(account, pool))

    async def check_room(self, account: str, pool: Pool, size: int, limit: int) -> None:
        """Check room for `size` bytes before they are received. StorageFull."""
        used = await self.read_used(account, pool)
        reached = self._find_reached(pool, used)
        if reached is not None or used.bytes + size > limit:
            raise StorageFull(reached)

    async def read_used(self, account: str, pool: Pool) -> Used:
        """Bytes and members of the pool."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return await self._ledger.read_used(account, pool)
            except CountersStale:
                await self._wait_for(account, pool, deadline)
            except CountersUnavailable as error:
                raise _refuse(account, error) from error

    async def confirm(self, account: str, pool: Pool, member: str, size: int, limit: int) -> None:
        """Confirm a claim after its object was created.

        StorageFull where the claim was lost and there is no room: then delete the object again.
        """
        try:
            if not await self._ledger.confirm(account, pool, member, size, limit):
                raise StorageFull
        except CountersUnavailable as error:
            # a rebuild finds the object, which exists by now
            _log.warning("a claim was not confirmed", account=account, error=str(error))

    async def release(self, account: str, pool: Pool, member: str) -> None:
        """Free a claim without an object; where that fails, the operator does so later."""
        try:
            await self._ledger.release(account, pool, member)
        except CountersUnavailable as error:
            _log.warning("a claim was not released", account=account, error=str(error))

    async def move(self, account: str, pool: Pool, member: str, to: str) -> None:
        """Rename a claim; where that fails, the operator does so later."""
        try:
            await self._ledger.move(account, pool, member, to)
        except CountersUnavailable as error:
            _log.warning("a claim was not moved", account=account, error=str(error))

    def _find_reached(self, pool: Pool, used: Used) -> int | None:
        """Return the pool's most members, if it has as many."""
        most = self._most.get(pool)
        return most if most is not None and used.members >= most else None

    async def _read_reached(self, account: str, pool: Pool) -> int | None:
        """Return the pool's most members if that is why it refused a claim, as far as known."""
        try:
            return self._find_reached(pool, await self._ledger.read_used(account, pool))
        except (CountersStale, CountersUnavailable):
            return None

    async def _wait_for(self, account: str, pool: Pool, deadline: float) -> None:
        """Wait for one rebuild, by this or another process. Unavailable."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._running.run((account, pool), partial(self._run, account, pool))
        except (TimeoutError, KubernetesError, CountersUnavailable) as error:
            raise _refuse(account, error) from error

    async def _run(self, account: str, pool: Pool) -> None:
        async with self._slots:
            if not await rebuild_pool(self._kube, self._ledger, account, pool):
                # another process rebuilds the pool, or has just done so
                await asyncio.sleep(PAUSE_SECONDS)


async def rebuild_pool(
    kube: KubernetesClient, ledger: StorageLedger, account: str, pool: Pool
) -> bool:
    """Rebuild the pool from the objects; False if another process does so, or it is not stale.

    Changes while the objects are listed reach the rebuild through `StorageLedger.confirm`, `move`
    and `release`. Raises what `kube` and `ledger` raise.
    """
    token = await ledger.begin_rebuild(account, pool)
    if token is None:
        return False

    async def renew() -> None:
        # to list many files takes longer than the lease of a rebuild
        if not await ledger.renew_rebuild(account, pool, token):
            raise _Lapsed

    try:
        # the token is taken before the lists: later changes reach this rebuild
        members = await read_members(kube, account, pool, after_page=renew)
    except _Lapsed:
        return False
    except BaseException:
        # a process that cannot list the objects must not block one that can
        with suppress(CountersUnavailable):
            await ledger.abandon_rebuild(account, pool, token)
        raise
    return await ledger.finish_rebuild(account, pool, token, members)


class _Lapsed(Exception):
    """The lease of the rebuild has expired."""


async def read_members(
    kube: KubernetesClient,
    account: str,
    pool: Pool,
    *,
    after_page: Callable[[], Awaitable[None]] | None = None,
) -> dict[str, int]:
    """Members of the pool according to the objects of one version: object name -> bytes.

    Objects count until their deletion begins; an Upload with its declared bytes while it is
    pending, and under its File's name once it is completed. KubernetesUnavailable, VersionExpired.
    """
    for attempt in range(_ATTEMPTS):
        with suppress(*(() if attempt + 1 == _ATTEMPTS else (VersionExpired,))):
            return await _read_moment(kube, account, pool, after_page)
    raise AssertionError("unreachable")


async def _read_moment(
    kube: KubernetesClient,
    account: str,
    pool: Pool,
    after_page: Callable[[], Awaitable[None]] | None,
) -> dict[str, int]:
    read = partial(list_all, kube, shorten=_drop_segments, after_page=after_page)
    owned = f"spec.request.accountName={account}"
    if pool == "temporary":
        files, _ = await read(GatewayFile.plural, field_selector=f"{owned},{_PURPOSE}=temporary")
        return {name: size for name, size in map(_measure, files) if size is not None}
    unsettled = f"{owned},status.work!=Settled"
    uploads, version = await read(GatewayUpload.plural, field_selector=unsettled)
    others = f"{owned},{_PURPOSE}!=temporary"
    files, _ = await read(GatewayFile.plural, field_selector=others, at_version=version)
    members: dict[str, int | None] = {}
    for upload in uploads:
        spec = upload["spec"]
        outcome = spec.get("outcome", "Pending")
        if outcome == "Pending":
            name, size = _measure(upload)
            members[name] = size
        elif outcome == "Completed":
            members[spec["completion"]["fileName"]] = spec["request"]["bytes"]
    # last: a File that is being deleted does not count, even if its Upload is still unsettled
    members.update(map(_measure, files))
    return {name: size for name, size in members.items() if size is not None}


def _measure(obj: Object) -> tuple[str, int | None]:
    """Name and bytes of an object; None for one that is being deleted."""
    meta = obj["metadata"]
    return meta["name"], None if "deletionTimestamp" in meta else obj["spec"]["request"]["bytes"]


def _drop_segments(obj: Object) -> Object:
    """Return the object without its longest field, which is not needed here."""
    obj["spec"]["request"].pop("segments", None)
    return obj


def _refuse(account: str, error: Exception) -> Unavailable:
    _log.warning("what an account stores is not known", account=account, error=str(error))
    return Unavailable("The gateway cannot check storage limits now.", retry_after=_RETRY_SECONDS)
