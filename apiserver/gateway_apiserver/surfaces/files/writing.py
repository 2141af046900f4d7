"""New Files and temporary files: bytes, claim of storage, object (contract §3.2, §2.5)."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import structlog

from gateway_core.accounts.records import AccountRecord
from gateway_core.api.errors import OutcomeUnknown, TooLarge, Unavailable
from gateway_core.failpoints import NO_FAILPOINTS, Failpoints
from gateway_core.files.files import FileRecorder, NewFile, build_file
from gateway_core.files.quota import StorageFull, StorageQuota
from gateway_core.kube.client import Created
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.kinds import FILES
from gateway_core.kube.repository import writing
from gateway_core.storage.content import pool_of
from gateway_core.storage.limits import StreamLimiter
from gateway_core.storage.objects import (
    ObjectStore,
    ObjectTooLarge,
    StoredObject,
    StoreUnavailable,
)

_log = structlog.get_logger(__name__)


class FileTooLarge(TooLarge):
    """More bytes than a file of its purpose may have (§3.2)."""

    code = "file_too_large"

    def __init__(self, most: int, *, param: str | None = None) -> None:
        super().__init__(f"The file may have at most {most} bytes.", param=param)


class FileWriter:
    """Stores bytes of new files, and records their objects. `clock` gives Unix seconds."""

    def __init__(
        self,
        store: ObjectStore,
        quota: StorageQuota,
        recorder: FileRecorder,
        streams: StreamLimiter,
        check_same: Callable[[AccountRecord], None],
        failpoints: Failpoints = NO_FAILPOINTS,
        *,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self.quota = quota
        self.clock = clock
        self._store = store
        self._recorder = recorder
        self._streams = streams
        self._check_same = check_same
        self._failpoints = failpoints

    async def store(
        self, account: AccountRecord, key: str, source: AsyncGenerator[bytes, None], most: int
    ) -> StoredObject:
        """Store the bytes of `source`. FileTooLarge beyond `most`, Unavailable, Unauthenticated."""
        began = time.monotonic()
        async with self._streams.take(account.name), aclosing(source):
            try:
                stored = await self._store.put_stream(key, source, max_bytes=most)
            except ObjectTooLarge:
                raise FileTooLarge(most, param="file") from None
            except StoreUnavailable as error:
                seconds = round(time.monotonic() - began, 1)
                _log.warning("a file could not be stored", error=str(error), seconds=seconds)
                raise Unavailable("The file cannot be stored now.") from error
        # bytes of another account's client are in the folder of this one, until the next audit
        self._check_same(account)
        self._failpoints.reach("after-file-bytes")
        return stored

    async def record(self, new: NewFile, limit: int, *, owns_bytes: bool = True) -> Created:
        """Claim storage for stored bytes, and create their object or get the one of its name.

        `limit` is the bytes that the account may have. After a failure the bytes and the claim are
        removed, unless the object may exist (OutcomeUnknown); bytes only with `owns_bytes`. Raises
        StorageFull, Unavailable, Internal.
        """
        obj = build_file(new, self.clock())
        pool, size = pool_of(obj), sum(segment.bytes for segment in new.segments)
        try:
            async with writing(FILES, new.name):
                await self.quota.claim(new.account, pool, new.name, size, limit)
                self._failpoints.reach("after-file-claim")
                made = await self._recorder.create(obj)
        except OutcomeUnknown:
            raise
        except Exception:
            if owns_bytes:
                await self.remove(new)
                # with an Idempotency-Key it may be another call's: the operator ends unused ones
                if new.fingerprint is None:
                    await self.quota.release(new.account, pool, new.name)
            raise
        self._failpoints.reach("after-file-object")
        if made.is_new:
            try:
                await self.quota.confirm(new.account, pool, new.name, size, limit)
            except StorageFull:
                # the operator removes the bytes of what was an object
                await self._recorder.withdraw(made.object)
                raise
        return made

    async def remove(self, new: NewFile) -> None:
        """Remove the bytes of a failed create. If this fails, the operator removes them later."""
        try:
            await self._store.delete_many(segment.key for segment in new.segments)
        except StoreUnavailable as error:
            _log.warning("bytes of a failed create were left", file=new.name, error=str(error))
