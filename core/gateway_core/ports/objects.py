"""The object store: bytes, written before the object that names them and deleted after it.

Fulfilled by `adapters.objectstore`. Keys are relative paths of `[A-Za-z0-9._/-]`.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


class ObjectMissing(Exception):
    """No object of that key is there."""


class ObjectTooLarge(Exception):
    """The source went over the limit; nothing was stored."""


class StoreUnavailable(Exception):
    """The store did not take or give the bytes."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What is known of an object without reading it; `sha256` is hex, None where not kept."""

    key: str
    bytes: int
    sha256: str | None


class ObjectStore(Protocol):
    """Bytes by key. Every method may raise StoreUnavailable. Memory is flat while streaming."""

    async def put(self, key: str, data: bytes) -> StoredObject:
        """Stores small data; atomic and durable when it returns, replacing what was there."""
        ...

    async def put_stream(
        self, key: str, source: AsyncIterator[bytes], *, max_bytes: int
    ) -> StoredObject:
        """Stores a stream; atomic and durable when it returns. ObjectTooLarge.

        If the source raises, nothing is stored.
        """
        ...

    async def get(self, key: str) -> bytes:
        """Reads small data whole. ObjectMissing."""
        ...

    async def head(self, key: str) -> StoredObject:
        """What is known of the object. ObjectMissing."""
        ...

    def stream(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Bytes from `start`, at most `length`; in chunks of at most 1 MiB. ObjectMissing."""
        ...

    async def delete(self, key: str) -> None:
        """Removes it; nothing happens if it is gone."""
        ...

    def list_keys(self, prefix: str) -> AsyncIterator[str]:
        """Keys that start with `prefix`, in no particular order."""
        ...
