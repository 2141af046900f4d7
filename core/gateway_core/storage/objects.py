"""Interface of the object store, and which store a deployment has chosen.

Bytes are written before the object that names them and deleted after it.
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
"""How many streams a store takes in at a time; who has more waits, and is to have them wait."""

CHUNK_BYTES = 1024 * 1024
"""Of a stream that this process reads for itself."""
DOWNLOAD_CHUNK_BYTES = 80 * 1024
"""Of a stream for a client, which is read without looking ahead: one chunk is in memory while the
client is slow."""


class ObjectMissing(Exception):
    """No object of that key is there."""


class ObjectTooLarge(Exception):
    """The source went over the limit; nothing was stored."""


class StoreUnavailable(Exception):
    """The store did not take or give the bytes."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What is known of an object: digests, in hex, only by who has just written it."""

    key: str
    bytes: int
    sha256: str | None = None
    xxh3: str | None = None

    def refer(self) -> ObjectRef:
        """How resources refer to what was just written."""
        assert self.sha256 is not None
        return ObjectRef(key=self.key, bytes=self.bytes, sha256=self.sha256, xxh3=self.xxh3)


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as a listing shows it; `modified`, in UTC, is when it was last written."""

    key: str
    bytes: int
    modified: datetime


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

        `examine`, such as a digest, is called with each chunk before that is given, in order, one
        call at a time, and off the event loop unless the chunk was in memory. With `read_ahead` the
        next chunk is read, and perhaps examined, while whoever uses this is at work with the one
        before it; without, the store keeps nothing of a chunk that it has given.

        Who leaves it early closes it: it holds a file or a connection.
        """
        ...

    async def delete(self, key: str) -> None:
        """Removes it; nothing happens if it is gone."""
        ...

    async def delete_many(self, keys: Iterable[str]) -> None:
        """Removes them; those that are gone do no harm.

        When it raises StoreUnavailable some may be removed and some not.
        """
        ...

    def list_entries(self, prefix: str, *, start_after: str | None = None) -> AsyncIterator[Entry]:
        """Objects whose keys start with `prefix`, in the order of their keys' characters.

        Those up to and including `start_after`, any text, are passed over without being read, so
        that a sweep can go on where an earlier one ended. What is written or removed meanwhile may
        be there or not; everything else is there exactly once. It is read in pages, so memory does
        not grow with the number of objects.
        """
        ...


_PREFIX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*\Z")


class StoreSettings(BaseSettings):
    """The part of a process's settings that says where bytes are, the same for every process.

    Environment variables are these names in capitals with the prefix GATEWAY_. Credentials of S3
    are none of them: boto3 finds them where every tool for AWS does.
    """

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True)

    store: Literal["directory", "s3"] = "directory"
    store_dir: Path | None = None
    """The directory."""
    store_bucket: str = ""
    """The bucket of S3, which has to be there."""
    store_prefix: Annotated[str, StringConstraints(max_length=256)] = ""
    """What the names of all objects begin with, up to a slash that is put between."""
    store_endpoint: str = ""
    """The URL of a store other than AWS."""
    store_region: str = ""
    """The bucket's region; where it is empty, what boto3 finds (`AWS_REGION`)."""
    store_addressing: Literal["auto", "path", "virtual"] = "auto"
    """Where the bucket stands in a URL; `auto`: in the path if there is an endpoint."""

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
    """ValueError unless it is an http(s) URL; its text is not repeated, as it may hold a secret."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("GATEWAY_STORE_ENDPOINT has to be a URL with http or https")
    if url.username is not None or url.query or url.fragment:
        raise ValueError("GATEWAY_STORE_ENDPOINT holds no credentials, query or fragment")
