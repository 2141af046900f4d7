"""Parts of an Upload: stored, counted, read and checked (contract §4.2 to §4.4)."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

import orjson
import structlog

from gateway_core.api.errors import (
    InvalidRequest,
    NotFound,
    TooLarge,
    TooManyCalls,
    Unavailable,
)
from gateway_core.api.ids import PART_PREFIX, IdMint, Ownership
from gateway_core.api.resource import Object, part_key, receipt_key, upload_folder
from gateway_core.api.upload import LIFETIME_SECONDS, MOST_PARTS, PartRef
from gateway_core.concurrency import map_bounded
from gateway_core.failpoints import NO_FAILPOINTS, Failpoints
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.files.quota_counters import PartCaps, PartLedger
from gateway_core.files.uploads import MOST_PART_BYTES, count_room
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.objects import (
    ObjectMissing,
    ObjectStore,
    ObjectTooLarge,
    StoreUnavailable,
)

MOST_AT_ONCE = 2
WAIT_SECONDS = 120.0
"""How long a caller waits for a slot, and for an equal earlier call."""
MOST_KEPT = 1000


class PartDigests:
    """MD5 of parts in an order, for one process: a few reads at a time, results cached."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._slots = FairSemaphore(
            MOST_AT_ONCE, alone=MOST_AT_ONCE, seconds=WAIT_SECONDS, error=_too_many
        )
        self._turns = WeakValueDictionary[tuple[str, str, bytes], asyncio.Lock]()
        self._kept = OrderedDict[tuple[str, str, bytes], bytes]()

    async def find_md5(self, account: str, upload: str, part_ids: Sequence[str]) -> bytes:
        """Return the MD5 of the parts in this order. ObjectMissing, StoreUnavailable."""
        place = account, upload, hashlib.sha256("\n".join(part_ids).encode()).digest()
        async with _hold(self._turns.setdefault(place, asyncio.Lock())):
            known = self._kept.get(place)
            if known is not None:
                for part_id in part_ids[:1]:
                    # parts are deleted together, maybe since the result was cached
                    await self._store.head(part_key(account, upload, part_id))
                return known
            keys = [part_key(account, upload, part_id) for part_id in part_ids]
            async with self._slots.take(account):
                found = await self._read(keys)
            self._kept[place] = found
            # evicts the oldest entry
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return found

    async def _read(self, keys: Iterable[str]) -> bytes:
        digest = hashlib.md5(usedforsecurity=False)
        for key in keys:
            async with aclosing(self._store.stream(key, examine=digest.update)) as chunks:
                async for _ in chunks:
                    pass
        return digest.digest()


@asynccontextmanager
async def _hold(lock: asyncio.Lock) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await lock.acquire()
    except TimeoutError:
        raise _too_many() from None
    try:
        yield
    finally:
        lock.release()


def _too_many() -> StoreUnavailable:
    return StoreUnavailable("too many Uploads are being read through")


MOST_PENDING = 1000
"""Uploads of an account that may be pending at once: each may store parts beyond its File."""
RETRY_SECONDS = 60
MOST_READS = 16
"""Receipts that one completion reads concurrently."""
_RECEIPT = ".json"
_log = structlog.get_logger(__name__)


class UploadParts:
    """Parts of all Uploads; callers check whose Upload it is."""

    def __init__(
        self,
        store: ObjectStore,
        ledger: PartLedger,
        mint: IdMint,
        failpoints: Failpoints = NO_FAILPOINTS,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._mint = mint
        self._failpoints = failpoints
        self._digests = PartDigests(store)

    async def begin(self, account: str, upload: str) -> None:
        """Count an Upload as pending until `forget`, or its expiry. Idempotent.

        Raises TooManyCalls where the account has too many of them, Unavailable.
        """
        try:
            begun = await self._ledger.begin(
                account, upload, seconds=LIFETIME_SECONDS, most=MOST_PENDING
            )
        except CountersUnavailable as error:
            raise Unavailable("Uploads cannot be counted now.", retry_after=1) from error
        if not begun:
            raise TooManyCalls(
                f"The account has {MOST_PENDING} pending uploads, as many as it may have at once.",
                retry_after=RETRY_SECONDS,
            )

    async def forget(self, account: str, upload: str) -> None:
        """Drop the counts of an Upload that has ended; where that fails, they expire."""
        try:
            await self._ledger.forget(account, upload)
        except CountersUnavailable as error:
            _log.warning("an upload still counts as pending", upload=upload, error=str(error))

    async def add(self, obj: Object, source: AsyncIterator[bytes], expected: int = 0) -> PartRef:
        """Store a part of the pending Upload `obj`.

        `expected` is its size as far as known, so that a part without room is refused at once.

        Raises:
            InvalidRequest: `empty_part`, or `too_many_part_bytes` beyond the Upload's caps.
            TooLarge: it has more than 64 MiB.
            CountersUnavailable, StoreUnavailable: nothing is known to be stored.
            Exceptions of `source`.
        """
        part_id = self._mint.mint_random(PART_PREFIX, _whose(obj)[0])
        # claimed before the bytes are received, so that parallel parts cannot exceed the caps
        await self._claim(obj, part_id, min(expected, MOST_PART_BYTES))
        try:
            return await self._store_part(obj, part_id, source)
        except BaseException:
            await self.discard(obj, part_id)
            raise

    async def discard(self, obj: Object, part_id: str) -> None:
        """Remove a part that no client knows; where that fails, the operator does so later."""
        account, upload = _whose(obj)
        keys = [receipt_key(account, upload, part_id), part_key(account, upload, part_id)]
        try:
            await self._store.delete_many(keys)
            await self._ledger.release(account, upload, part_id)
        except (StoreUnavailable, CountersUnavailable) as error:
            _log.warning("a part could not be taken back", upload=upload, error=str(error))

    async def weigh(self, obj: Object, part_ids: Sequence[str]) -> list[PartRef]:
        """Read the receipts of these parts, in their order.

        Raises NotFound, `part_not_found`, where one is no part of this Upload; StoreUnavailable.
        """
        account, upload = _whose(obj)
        for part_id in part_ids:
            # before it becomes a part of a store key
            if self._mint.check(PART_PREFIX, account, part_id) is not Ownership.MINTED:
                raise _unknown_part()

        async def read(part_id: str) -> PartRef:
            raw = await self._store.get(receipt_key(account, upload, part_id))
            return PartRef(id=part_id, **orjson.loads(raw))

        try:
            return await map_bounded(MOST_READS, read, part_ids)
        except ObjectMissing:
            raise _unknown_part() from None

    async def digest_md5(self, obj: Object, part_ids: Sequence[str]) -> bytes:
        """Return the MD5 of the parts in this order. ObjectMissing, StoreUnavailable."""
        return await self._digests.find_md5(*_whose(obj), part_ids)

    async def _store_part(self, obj: Object, part_id: str, source: AsyncIterator[bytes]) -> PartRef:
        account, upload = _whose(obj)
        first = await _read_first(source)
        self._failpoints.reach("before-part-put")
        try:
            stored = await self._store.put_stream(
                part_key(account, upload, part_id),
                _resume(first, source),
                max_bytes=MOST_PART_BYTES,
            )
        except ObjectTooLarge:
            raise TooLarge(
                f"A part must have at most {MOST_PART_BYTES} bytes.",
                code="part_too_large",
                param="data",
            ) from None
        # replaces the first claim, which was for the declared size
        await self._claim(obj, part_id, stored.bytes)
        receipt: dict[str, Any] = {
            "bytes": stored.bytes,
            "sha256": stored.sha256,
            "xxh3": stored.xxh3,
        }
        # written last: a part without a receipt does not exist for completions
        await self._store.put(receipt_key(account, upload, part_id), orjson.dumps(receipt))
        self._failpoints.reach("after-part-put")
        return PartRef(id=part_id, **receipt)

    async def _claim(self, obj: Object, part_id: str, size: int) -> None:
        account, upload = _whose(obj)
        caps = PartCaps(parts=MOST_PARTS, bytes=count_room(obj))
        try:
            taken = await self._ledger.claim(account, upload, part_id, size, caps)
        except CountersStale:
            listed = await self._list_parts(account, upload)
            await self._ledger.establish(account, upload, listed)
            taken = await self._ledger.claim(account, upload, part_id, size, caps)
        if not taken:
            raise InvalidRequest(
                f"An Upload takes at most {caps.parts} parts, and this one {caps.bytes} bytes.",
                code="too_many_part_bytes",
                param="data",
            )

    async def _list_parts(self, account: str, upload: str) -> Mapping[str, int]:
        folder = upload_folder(account, upload)
        return {
            entry.key.removeprefix(folder): entry.bytes
            async for entry in self._store.list_entries(folder)
            if not entry.key.endswith(_RECEIPT)
        }


async def _read_first(source: AsyncIterator[bytes]) -> bytes:
    """Return the first bytes of a part. InvalidRequest if there are none."""
    async for chunk in source:
        if chunk:
            return chunk
    raise InvalidRequest("A part must have at least one byte.", code="empty_part", param="data")


async def _resume(first: bytes, source: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    yield first
    async for chunk in source:
        yield chunk


def _whose(obj: Mapping[str, Any]) -> tuple[str, str]:
    return obj["spec"]["request"]["accountName"], obj["metadata"]["name"]


def _unknown_part() -> NotFound:
    return NotFound(
        "One of the parts was not found in this Upload.", code="part_not_found", param="part_ids"
    )
