"""`ObjectStore` in an S3 bucket.

boto3 blocks, so calls run on threads: 32 for streams, and 32 for small calls so that slow streams
do not delay them. A cancelled call runs on to its end or time-out, and its effects are then undone.

`put` and `put_stream` return digests; `head` does not, since the ETag of a multipart object is none
(the resource that names the object keeps them).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

import structlog

from gateway_core.kube.clock import CLOCK
from gateway_core.storage.content import Digests
from gateway_core.storage.directory_files import check_key, check_prefix
from gateway_core.storage.objects import (
    CHUNK_BYTES,
    MOST_STREAMS,
    Entry,
    ObjectMissing,
    ObjectTooLarge,
    StoredObject,
    StoreUnavailable,
)
from gateway_core.storage.s3.client import (
    FAILURES,
    MISSING,
    Threads,
    explain,
    explaining,
    read_code,
    read_status,
)
from gateway_core.storage.s3.reading import ObjectReader
from gateway_core.storage.s3.writing import MAX_PARTS, PART_BYTES, PartsUpload

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

THREADS = 32
"""Threads for small calls, and as many for parts and streams."""

ENDINGS = 4
"""Threads for aborts and closes, which may wait for a call under way."""

RELEASE_SECONDS = 1.0
"""A stream that is not read for so long gives up its connection and kernel buffers, and requests
the rest when it is read again: slow clients would hold hundreds of connections."""
PAGE = 1000
LEFTOVER_AGE = timedelta(days=1)

_ONE_BY_ONE = (400, 405, 501)
"""Status of stores without DeleteObjects, or that want a checksum boto3 no longer sends."""

_log = structlog.get_logger(__name__)


class S3Store:
    """Objects of an existing bucket whose names begin with `prefix`. See `ObjectStore`.

    Keys are checked (ValueError); objects whose names are no keys are ignored. The bucket must list
    in the order of names, as all but S3's directory buckets do.
    """

    def __init__(self, client: "S3Client", bucket: str, prefix: str = "") -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._calls = Threads(THREADS, "s3calls")
        self._streams = Threads(THREADS, "s3streams")
        self._endings = ThreadPoolExecutor(ENDINGS, thread_name_prefix="s3endings")
        self._uploads = asyncio.Semaphore(MOST_STREAMS)

    def close(self) -> None:
        """Stop the threads once their calls have ended, and close the connections."""
        self._calls.close()
        self._streams.close()
        self._endings.shutdown()
        self._client.close()

    async def put(self, key: str, data: bytes) -> StoredObject:
        """See `ObjectStore`."""
        return await self._calls.run(self._put, key, self._name(key), data)

    async def put_stream(
        self, key: str, source: AsyncIterator[bytes], *, max_bytes: int
    ) -> StoredObject:
        """See `ObjectStore`. `source` is not closed; at most 48 GiB.

        At most 32 run at a time, each with a buffer of one part, 5 MiB; a further one waits before
        it reads its source.
        """
        upload = PartsUpload(self._client, self._bucket, self._name(key))
        limit = min(max_bytes, MAX_PARTS * PART_BYTES)
        async with self._uploads:
            try:
                async with aclosing(_cut(key, source, limit)) as parts:
                    async for part, is_last in parts:
                        await self._streams.run(upload.finish if is_last else upload.add, part)
            except BaseException:
                # not awaited: it may wait for a call under way on a thread
                self._endings.submit(upload.abort)
                raise
        return StoredObject(key, upload.bytes, upload.digests.sha256, upload.digests.xxh3)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore`."""
        reader = ObjectReader(self._client, self._bucket, self._name(key))
        return await self._calls.run(reader.read_all, CHUNK_BYTES)

    async def head(self, key: str) -> StoredObject:
        """See `ObjectStore`. Without digests."""
        return StoredObject(key, await self._calls.run(self._measure, self._name(key)))

    async def stream(
        self,
        key: str,
        start: int = 0,
        length: int | None = None,
        *,
        examine: Callable[[bytes], object] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        read_ahead: bool = True,
    ) -> AsyncGenerator[bytes, None]:
        """See `ObjectStore`.

        A response that breaks off is continued; StoreUnavailable where the object was replaced. A
        thread reads a chunk and examines it in one go.
        """
        name = self._name(key)
        if length == 0:
            await self._calls.run(self._measure, name)
            return
        reader = ObjectReader(self._client, self._bucket, name, start, length)

        def take() -> bytes:
            chunk = reader.read(chunk_bytes)
            if examine is not None and chunk:
                examine(chunk)
            return chunk

        loop = asyncio.get_running_loop()

        def begin() -> asyncio.Future[bytes]:
            return asyncio.ensure_future(self._streams.run(take))

        coming: asyncio.Future[bytes] | None = begin()
        held: dict[str, bytes] = {}
        try:
            while coming is not None:
                held["chunk"] = await coming
                if not held["chunk"]:
                    return
                # read ahead: a finished future holds its chunk until the next one
                coming = begin() if read_ahead else None
                release = loop.call_later(RELEASE_SECONDS, self._endings.submit, reader.release)
                try:
                    yield held.pop("chunk")
                finally:
                    release.cancel()
                if coming is None:
                    coming = begin()
        finally:
            if coming is not None and not coming.cancel() and not coming.cancelled():
                # retrieved, else asyncio logs the error of bytes that no caller waits for
                coming.exception()
            # on a thread: close waits for a read under way
            self._endings.submit(reader.close)

    async def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        await self._calls.run(self._delete, self._name(key))

    async def delete_many(self, keys: Iterable[str]) -> None:
        """See `ObjectStore`. A thousand a call."""
        names = [self._name(key) for key in keys]
        for start in range(0, len(names), PAGE):
            await self._calls.run(self._delete_page, names[start : start + PAGE])

    async def list_entries(
        self, prefix: str, *, start_after: str | None = None
    ) -> AsyncIterator[Entry]:
        """See `ObjectStore`. Pages of a thousand, each after the last key of the one before."""
        check_prefix(prefix)
        after = start_after or ""
        while True:
            page, after = await self._calls.run(self._list_page, prefix, after)
            for entry in page:
                yield entry
            if not after:
                return

    async def remove_leftovers(self, folder: str) -> None:
        """Abort multipart uploads below `folder`, such as `a/`, begun more than a day ago.

        A process without the right, like the media host, leaves that to the others. Failures are
        logged, so a start shows whether the store is usable.
        """
        try:
            await self._calls.run(self._abort_old_uploads, folder)
        except StoreUnavailable as error:
            _log.warning("leftover uploads were not looked for", error=str(error))

    def _name(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    def _put(self, key: str, name: str, data: bytes) -> StoredObject:
        with explaining("PutObject", self._bucket):
            self._client.put_object(Bucket=self._bucket, Key=name, Body=data)
        digests = Digests(data)
        return StoredObject(key, len(data), digests.sha256, digests.xxh3)

    def _measure(self, name: str) -> int:
        try:
            return self._client.head_object(Bucket=self._bucket, Key=name)["ContentLength"]
        except FAILURES as error:
            if read_code(error) not in MISSING:
                raise explain("HeadObject", self._bucket, error) from error
        # a response without a body may also mean that the bucket is missing
        with explaining("HeadBucket", self._bucket):
            self._client.head_bucket(Bucket=self._bucket)
        raise ObjectMissing(name)

    def _delete(self, name: str) -> None:
        try:
            self._client.delete_object(Bucket=self._bucket, Key=name)
        except FAILURES as error:
            if read_code(error) != "NoSuchKey":
                raise explain("DeleteObject", self._bucket, error) from error

    def _delete_page(self, names: list[str]) -> None:
        try:
            answer = self._client.delete_objects(
                Bucket=self._bucket,
                Delete={"Objects": [{"Key": name} for name in names], "Quiet": True},
            )
        except FAILURES as error:
            if read_status(error) not in _ONE_BY_ONE:
                raise explain("DeleteObjects", self._bucket, error) from error
            for name in names:
                self._delete(name)
            return
        refused = [part for part in answer.get("Errors", ()) if part.get("Code") not in MISSING]
        if refused:
            raise StoreUnavailable(
                f"bucket {self._bucket}: DeleteObjects: {len(refused)} of {len(names)} were "
                f"refused, the first with {refused[0].get('Code')}"
            )

    def _list_page(self, prefix: str, after: str) -> tuple[list[Entry], str]:
        """Return a page of entries, and the key that the next page starts after.

        The result is empty at the end.
        """
        options: dict[str, Any] = {"StartAfter": self._prefix + after} if after else {}
        with explaining("ListObjectsV2", self._bucket):
            answer = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix + prefix, MaxKeys=PAGE, **options
            )
        # every field is optional in the type stubs
        found: list[Any] = list(answer.get("Contents", ()))
        entries = []
        for item in found:
            key = item["Key"].removeprefix(self._prefix)
            with suppress(ValueError):
                check_key(key)
                entries.append(Entry(key, item["Size"], item["LastModified"].astimezone(UTC)))
        more = bool(found) and answer["IsTruncated"]
        return entries, found[-1]["Key"].removeprefix(self._prefix) if more else ""

    def _abort_old_uploads(self, folder: str) -> None:
        oldest = CLOCK.now() - LEFTOVER_AGE
        with explaining("ListMultipartUploads", self._bucket):
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + folder):
                uploads: list[Any] = list(page.get("Uploads", ()))
                for upload in uploads:
                    if upload["Initiated"] < oldest:
                        self._abort_upload(upload["Key"], upload["UploadId"])

    def _abort_upload(self, name: str, upload_id: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload_id)
        except FAILURES as error:
            # another process sweeps as well
            if read_code(error) != "NoSuchUpload":
                raise


async def _cut(
    key: str, source: AsyncIterator[bytes], limit: int
) -> AsyncGenerator[tuple[bytearray, bool], None]:
    """Yield the source in parts of 5 MiB, each with whether it is the last; at least one.

    All parts are one buffer, valid until the next part is requested.
    """
    part, total = bytearray(), 0
    async for chunk in source:
        total += len(chunk)
        if total > limit:
            raise ObjectTooLarge(f"{key}: more than {limit} bytes")
        rest = memoryview(chunk)
        while rest:
            if len(part) == PART_BYTES:
                yield part, False
                # cleared, not replaced: a caller may still hold the old one, twice the memory
                part.clear()
            taken = rest[: PART_BYTES - len(part)]
            part += taken
            rest = rest[len(taken) :]
    yield part, True
