"""`ObjectStore` in memory; verified by the tests of the real one."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from datetime import UTC, datetime

from gateway_core.storage.content import Digests
from gateway_core.storage.directory_files import check_key, check_prefix
from gateway_core.storage.objects import (
    Entry,
    ObjectMissing,
    ObjectTooLarge,
    StoredObject,
    StoreUnavailable,
)

CHUNK_BYTES = 256 * 1024


class FakeObjects:
    """Objects of one process. `away` makes the store unreachable; `now` is its clock."""

    def __init__(self) -> None:
        self.away = False
        self.contents: dict[str, bytes] = {}
        self.modified: dict[str, datetime] = {}
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def put(self, key: str, data: bytes) -> StoredObject:
        self._check(key)
        self.contents[key] = data
        self.modified[key] = self.now()
        digests = Digests(data)
        return StoredObject(key, len(data), digests.sha256, digests.xxh3)

    async def put_stream(
        self, key: str, source: AsyncIterator[bytes], *, max_bytes: int
    ) -> StoredObject:
        self._check(key)
        data = bytearray()
        async for chunk in source:
            data += chunk
            if len(data) > max_bytes:
                raise ObjectTooLarge(key)
        return await self.put(key, bytes(data))

    async def get(self, key: str) -> bytes:
        self._check(key)
        if key not in self.contents:
            raise ObjectMissing(key)
        return self.contents[key]

    async def head(self, key: str) -> StoredObject:
        return StoredObject(key, len(await self.get(key)))

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
        data = await self.get(key)
        end = len(data) if length is None else min(len(data), start + length)
        for position in range(start, end, chunk_bytes):
            chunk = data[position : min(end, position + chunk_bytes)]
            if examine is not None:
                examine(chunk)
            yield chunk

    async def delete(self, key: str) -> None:
        self._check(key)
        self._remove(key)

    async def delete_many(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        for key in wanted:
            self._check(key)
        for key in wanted:
            self._remove(key)

    async def list_entries(
        self, prefix: str, *, start_after: str | None = None
    ) -> AsyncIterator[Entry]:
        check_prefix(prefix)
        self._check_there()
        for key in sorted(self.contents):
            if key.startswith(prefix) and key > (start_after or "") and key in self.contents:
                modified = self.modified.setdefault(key, self.now())
                yield Entry(key, len(self.contents[key]), modified)

    def _remove(self, key: str) -> None:
        self.contents.pop(key, None)
        self.modified.pop(key, None)

    def _check(self, key: str) -> None:
        check_key(key)
        self._check_there()

    def _check_there(self) -> None:
        if self.away:
            raise StoreUnavailable("away")
