"""`ObjectStore` in memory; verified by the port's tests beside the real one."""

import hashlib
from collections.abc import AsyncIterator

from gateway_core.adapters.objectstore.keys import check_key, check_prefix
from gateway_core.ports.objects import (
    ObjectMissing,
    ObjectTooLarge,
    StoredObject,
    StoreUnavailable,
)

CHUNK_BYTES = 256 * 1024


class FakeObjects:
    """Objects of one process. `away` makes the store unreachable."""

    def __init__(self) -> None:
        self.away = False
        self.contents: dict[str, bytes] = {}

    async def put(self, key: str, data: bytes) -> StoredObject:
        self._check(key)
        self.contents[key] = data
        return StoredObject(key, len(data), hashlib.sha256(data).hexdigest())

    async def put_stream(
        self, key: str, source: AsyncIterator[bytes], *, max_bytes: int
    ) -> StoredObject:
        self._check(key)
        data = b""
        async for chunk in source:
            data += chunk
            if len(data) > max_bytes:
                raise ObjectTooLarge(key)
        return await self.put(key, data)

    async def get(self, key: str) -> bytes:
        self._check(key)
        if key not in self.contents:
            raise ObjectMissing(key)
        return self.contents[key]

    async def head(self, key: str) -> StoredObject:
        return StoredObject(key, len(await self.get(key)), None)

    async def stream(
        self, key: str, start: int = 0, length: int | None = None
    ) -> AsyncIterator[bytes]:
        data = await self.get(key)
        end = len(data) if length is None else min(len(data), start + length)
        for position in range(start, end, CHUNK_BYTES):
            yield data[position : min(end, position + CHUNK_BYTES)]

    async def delete(self, key: str) -> None:
        self._check(key)
        self.contents.pop(key, None)

    async def list_keys(self, prefix: str) -> AsyncIterator[str]:
        check_prefix(prefix)
        for key in list(self.contents):
            if key.startswith(prefix):
                yield key

    def _check(self, key: str) -> None:
        check_key(key)
        if self.away:
            raise StoreUnavailable("away")
