"""`ObjectStore` in a directory: one file for each object.

An object is written to a `.tmp-` file at the root, synced, and renamed to its key, so it is either
whole or missing, even after a power cut. `head` returns no digests: extended attributes are not
available everywhere, and a second file would not be replaced in the same step as the bytes.

One filesystem holds the whole directory, and no key is the folder of another (`a` and `a/b`).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from gateway_core.storage.directory_files import (
    FileWriter,
    check_key,
    check_prefix,
    delete_file,
    delete_files,
    list_names,
    measure,
    measure_all,
    open_file,
    read_block,
    read_cached,
    read_whole,
    remove_leftovers,
    write_whole,
)
from gateway_core.storage.objects import (
    CHUNK_BYTES,
    Entry,
    ObjectTooLarge,
    StoredObject,
    StoreUnavailable,
)

BLOCK_BYTES = 256 * 1024
THREADS = 8
PAGE = 500
"""Files that a thread measures or removes in one go."""

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class DirectoryStore:
    """Objects under `root`, created if need be. See `ObjectStore`.

    Construction removes leftovers of writes older than a day. Keys are checked (ValueError). Files
    are used on 8 threads.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="objectstore")
        root.mkdir(parents=True, exist_ok=True)
        remove_leftovers(root)

    def close(self) -> None:
        """Stop the threads once their calls have ended."""
        self._threads.shutdown()

    async def put(self, key: str, data: bytes) -> StoredObject:
        """See `ObjectStore`."""
        path = self._locate(key)
        digests = await self._run(write_whole, self._root, path, data)
        return StoredObject(key, len(data), digests.sha256, digests.xxh3)

    async def put_stream(
        self, key: str, source: AsyncIterator[bytes], *, max_bytes: int
    ) -> StoredObject:
        """See `ObjectStore`. `source` is not closed."""
        path = self._locate(key)
        writer = FileWriter(self._root)
        job: Future[None] | None = None
        try:
            async with aclosing(_collect(key, source, max_bytes)) as blocks:
                async for block in blocks:
                    # the next block is received while this one is written
                    if job is not None:
                        await _finish(job)
                    job = self._threads.submit(writer.write, block)
            if job is not None:
                await _finish(job)
            job = self._threads.submit(writer.commit, path)
            await _finish(job)
        except BaseException as error:
            if job is None or job.done():
                writer.discard()
            else:
                # the thread goes on after a cancellation: the file is removed when it has ended
                job.add_done_callback(lambda _: writer.discard())
                if isinstance(error, Exception):
                    # the error says that nothing is stored, so wait until that is true
                    with suppress(Exception):
                        await asyncio.wrap_future(job)
            raise
        return StoredObject(key, writer.bytes, writer.digests.sha256, writer.digests.xxh3)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore`."""
        return await self._run(read_whole, self._locate(key))

    async def head(self, key: str) -> StoredObject:
        """See `ObjectStore`. Without digests."""
        return StoredObject(key, await self._run(measure, self._locate(key)))

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
        """See `ObjectStore`. An object replaced meanwhile is read as it was.

        A thread reads a chunk and examines it in one go.
        """
        path = self._locate(key)
        file = await self._run(open_file, path)
        position, end = start, None if length is None else start + length

        def begin() -> Future[bytes]:
            return self._threads.submit(read_block, file, position, end, chunk_bytes, examine)

        job: Future[bytes] | None = None
        held: dict[str, bytes] = {}
        try:
            while True:
                cached = None
                if not read_ahead:
                    cached = read_cached(file, position, end, chunk_bytes)
                if cached is None:
                    job = job or begin()
                    held["chunk"] = await _finish(job)
                else:
                    if examine is not None and cached:
                        examine(cached)
                    held["chunk"], cached = cached, None
                    # neither a cached read nor a fast client waits: let other tasks run
                    await asyncio.sleep(0)
                if not held["chunk"]:
                    return
                position += len(held["chunk"])
                # a finished job would hold its chunk until the next one
                job = begin() if read_ahead else None
                yield held.pop("chunk")
        finally:
            if job is None:
                file.close()
            else:
                job.cancel()
                # after a read under way, which could meet another file with the same descriptor
                job.add_done_callback(lambda _: file.close())

    async def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        await self._run(delete_file, self._root, self._locate(key))

    async def delete_many(self, keys: Iterable[str]) -> None:
        """See `ObjectStore`."""
        paths = [self._locate(key) for key in keys]
        for start in range(0, len(paths), PAGE):
            await self._run(delete_files, self._root, paths[start : start + PAGE])

    async def list_entries(
        self, prefix: str, *, start_after: str | None = None
    ) -> AsyncIterator[Entry]:
        """See `ObjectStore`. Holds the names of the folders on the path to one object."""
        check_prefix(prefix)
        after = start_after or ""
        folders = [iter(await self._list_names(prefix.rpartition("/")[0], prefix, after))]
        while folders:
            page = list[str]()
            folder = None
            for name in folders[-1]:
                if name.endswith("/"):
                    folder = name
                    break
                page.append(name)
                if len(page) == PAGE:
                    break
            for entry in await self._run(measure_all, self._root, page) if page else ():
                yield entry
            if folder is not None:
                names = await self._list_names(folder.removesuffix("/"), prefix, after)
                folders.append(iter(names))
            elif len(page) < PAGE:
                folders.pop()

    async def _list_names(self, folder: str, prefix: str, after: str) -> list[str]:
        return await self._run(list_names, self._root, folder, prefix, after)

    def _locate(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    async def _run(
        self,
        work: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        return await _finish(self._threads.submit(work, *arguments, **options))


async def _collect(
    key: str, source: AsyncIterator[bytes], max_bytes: int
) -> AsyncGenerator[bytes, None]:
    """Yield blocks of at least 256 KiB except the last: each costs a thread's wake-up."""
    buffer = bytearray()
    total = 0
    async for chunk in source:
        total += len(chunk)
        if total > max_bytes:
            raise ObjectTooLarge(f"{key}: more than {max_bytes} bytes")
        buffer += chunk
        if len(buffer) >= BLOCK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


async def _finish(job: Future[Result]) -> Result:
    try:
        return await asyncio.wrap_future(job)
    except OSError as error:
        raise StoreUnavailable(f"the directory of objects: {error.strerror or error}") from error
