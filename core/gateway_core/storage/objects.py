"""Interface of the object store, and its settings.

Bytes are written before the Kubernetes object that names them, and deleted after it.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self
from urllib.parse import urlsplit

from pydantic import StringConstraints, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway_core.api.resource import ObjectRef

MOST_STREAMS = 32
"""Streams that a store accepts at a time; callers with more must make them wait."""

CHUNK_BYTES = 1024 * 1024
"""Chunks of a stream that the process reads for itself."""
DOWNLOAD_CHUNK_BYTES = 80 * 1024
"""Chunks of a stream for a client, without read-ahead: a slow client holds one chunk in memory."""


class ObjectMissing(Exception):
    """No object has the key."""


class ObjectTooLarge(Exception):
    """The source exceeded the limit; nothing was stored."""


class StoreUnavailable(Exception):
    """The store cannot be reached or rejects the call."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object; its digests, in hex, are known only where it was just written."""

    key: str
    bytes: int
    sha256: str | None = None
    xxh3: str | None = None

    def refer(self) -> ObjectRef:
        """Return the reference to an object just written, for a resource."""
        assert self.sha256 is not None
        return ObjectRef(key=self.key, bytes=self.bytes, sha256=self.sha256, xxh3=self.xxh3)


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in a list; `modified`, in UTC, is the time of its last write."""

    key: str
    bytes: int
    modified: datetime


class ObjectStore(Protocol):
    """Bytes by key. Methods may raise StoreUnavailable. Streams use constant memory."""

    async def put(self, key: str, data: bytes) -> StoredObject:
        """Store small data; atomic, durable on return, replaces an existing object."""
        ...

    async def put_stream(
        self, key: str, source: AsyncIterator[bytes], *, max_bytes: int
    ) -> StoredObject:
        """Store a stream; atomic, durable on return. ObjectTooLarge.

        Nothing is stored where the source raises.
        """
        ...

    async def get(self, key: str) -> bytes:
        """Read small data whole. ObjectMissing."""
        ...

    async def head(self, key: str) -> StoredObject:
        """Key and size of the object. ObjectMissing."""
        ...

    def stream(
        self,
        key: str,
        start: int = 0,
        length: int | None = None,
        *,
        examine: Callable[[bytes], object] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        read_ahead: bool = True,
    ) -> AsyncGenerator[bytes, None]:
        """Bytes from `start`, at most `length`; in chunks of at most `chunk_bytes`. ObjectMissing.

        `examine`, such as a digest, is called with each chunk before it is yielded, in order, one
        call at a time, and on a thread unless the chunk was in memory. With `read_ahead` the next
        chunk is read, and perhaps examined, while the caller handles the one before; without it the
        store keeps no chunk that it has yielded.

        Close it where it is not read to its end: it holds a file or a connection.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove the object. Idempotent."""
        ...

    async def delete_many(self, keys: Iterable[str]) -> None:
        """Remove the objects. Idempotent; after StoreUnavailable some may be removed."""
        ...

    def list_entries(self, prefix: str, *, start_after: str | None = None) -> AsyncIterator[Entry]:
        """Return objects whose keys start with `prefix`, in the order of their keys' characters.

        Keys up to and including `start_after`, any text, are skipped without being read, so that a
        sweep can continue where an earlier one ended. Objects written or removed meanwhile may be
        included or not, all others exactly once. Reads pages: memory does not grow with the number
        of objects.
        """
        ...


_PREFIX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*\Z")


class StoreSettings(BaseSettings):
    """Settings of the object store, the same for every process.

    Environment variables are these names in capitals with the prefix GATEWAY_. Credentials of S3
    are not among them: boto3 finds them as every AWS tool does.
    """

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True)

    store: Literal["directory", "s3"] = "directory"
    """Where bytes are kept: a directory that all processes share, or an S3 bucket."""
    store_dir: Path | None = None
    """The directory."""
    store_bucket: str = ""
    """The S3 bucket, which must exist."""
    store_prefix: Annotated[str, StringConstraints(max_length=256)] = ""
    """Prefix of the names of all objects, without the slash after it."""
    store_endpoint: str = ""
    """The URL of a store other than AWS."""
    store_region: str = ""
    """The bucket's region; by default the one that boto3 finds (`AWS_REGION`)."""
    store_addressing: Literal["auto", "path", "virtual"] = "auto"
    """Place of the bucket in a URL; `auto`: in the path where there is an endpoint."""

    @model_validator(mode="after")
    def _check_store(self) -> Self:
        if self.store == "directory":
            if self.store_dir is None:
                raise ValueError("GATEWAY_STORE_DIR has to name the directory of the object store")
            return self
        if not self.store_bucket:
            raise ValueError("GATEWAY_STORE is s3: GATEWAY_STORE_BUCKET has to name the bucket")
        if self.store_prefix and not _PREFIX.match(self.store_prefix):
            raise ValueError("GATEWAY_STORE_PREFIX has to be like `gateway` or `team/gateway`")
        if self.store_endpoint:
            _check_endpoint(self.store_endpoint)
        return self


def _check_endpoint(text: str) -> None:
    """Raise ValueError unless it is an http(s) URL; the error does not repeat it (secrets)."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("GATEWAY_STORE_ENDPOINT has to be a URL with http or https")
    if url.username is not None or url.query or url.fragment:
        raise ValueError("GATEWAY_STORE_ENDPOINT holds no credentials, query or fragment")
