"""Content of stored Files: digests, owners of object keys, and streams of their segments."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import xxhash

from gateway_core.api.resource import (
    BATCHES_FOLDER,
    FILES_FOLDER,
    TEMPORARY_FOLDER,
    UPLOADS_FOLDER,
    Object,
    ObjectRef,
    file_key,
    temporary_key,
    upload_folder,
)
from gateway_core.storage.objects import DOWNLOAD_CHUNK_BYTES, ObjectStore


class Digests:
    """SHA-256 and XXH3 of bytes given in order, in hex."""

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self._sha256 = hashlib.sha256(data)
        self._xxh3 = xxhash.xxh3_128(data)

    def update(self, data: bytes | bytearray) -> None:
        """Add bytes. Blocking: a MiB takes about a millisecond."""
        self._sha256.update(data)
        self._xxh3.update(data)

    @property
    def sha256(self) -> str:
        """Digest for other readers of the bytes."""
        return self._sha256.hexdigest()

    @property
    def xxh3(self) -> str:
        """Digest that the gateway checks at each read."""
        return self._xxh3.hexdigest()


FOLDERS = (BATCHES_FOLDER, FILES_FOLDER, TEMPORARY_FOLDER, UPLOADS_FOLDER)
"""Folders of keys that belong to a file, an upload or a batch."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of a key: its folder, the account, and the name of the Kubernetes object."""

    folder: str
    account: str
    name: str


def read_owner(key: str) -> Owner | None:
    """Return the owner of `key`; None where the gateway writes no such key."""
    for folder in FOLDERS:
        if key.startswith(folder):
            account, slash, rest = key.removeprefix(folder).partition("/")
            name = rest.partition("/")[0]
            return Owner(folder, account, name) if slash and account and name else None
    return None


def pool_of(file: Object) -> Literal["files", "temporary"]:
    """Return the storage pool of its account that a GatewayFile counts in."""
    return "temporary" if file["spec"]["request"]["purpose"] == "temporary" else "files"


def list_keys(file: Object) -> list[str]:
    """Return keys of a GatewayFile's segments, in order."""
    return [segment["key"] for segment in file["spec"]["request"]["segments"]]


def find_foreign(file: Object) -> list[str]:
    """Return keys that a GatewayFile names outside its own folders.

    The gateway writes none; an object created with kubectl may name any key.
    """
    request, name = file["spec"]["request"], file["metadata"]["name"]
    account, upload = request["accountName"], request.get("uploadName")
    whole = {file_key(account, name), temporary_key(account, name)}
    folders = [f"{key}/" for key in whole]
    if upload:
        folders.append(upload_folder(account, upload))
    return [
        key for key in list_keys(file) if key not in whole and not key.startswith(tuple(folders))
    ]


class ContentDamaged(Exception):
    """The store has other bytes than were written; the text names the segment."""


class Check:
    """Comparison of bytes given in order with the digest of those written.

    By XXH3, which costs a download little; SHA-256 would be most of its CPU, and only accidents
    have to be detected. By SHA-256 where the reference has no other digest.
    """

    def __init__(self, ref: ObjectRef) -> None:
        self._digest = hashlib.sha256() if ref.xxh3 is None else xxhash.xxh3_128()
        self._expected = ref.xxh3 or ref.sha256
        self.update = self._digest.update

    def agrees(self) -> bool:
        """Return whether the bytes are those written."""
        return self._digest.hexdigest() == self._expected


def read_segments(file: Object) -> list[ObjectRef]:
    """Return the segments of a GatewayFile, in order."""
    return [ObjectRef.model_validate(ref) for ref in file["spec"]["request"]["segments"]]


async def stream_content(
    store: ObjectStore, segments: Sequence[ObjectRef], start: int = 0, length: int | None = None
) -> AsyncGenerator[bytes, None]:
    """Bytes of consecutive segments from `start`, at most `length`, in chunks of at most 80 KiB.

    Keeps no chunk that it has yielded, so a slow client holds one. Close it where it is not read to
    its end. Raises ContentDamaged, ObjectMissing, StoreUnavailable.
    """
    held: dict[str, bytes] = {}
    left = sum(ref.bytes for ref in segments) - start if length is None else length
    for place, ref in enumerate(segments):
        if left <= 0:
            return
        if start >= ref.bytes:
            start -= ref.bytes
            continue
        wanted = min(ref.bytes - start, left)
        async with aclosing(_stream_segment(store, ref, place, start, wanted)) as chunks:
            # a plain variable would keep the chunk in memory until the next one
            async for held["chunk"] in chunks:
                yield held.pop("chunk")
        start, left = 0, left - wanted


async def _stream_segment(
    store: ObjectStore, ref: ObjectRef, place: int, start: int, length: int
) -> AsyncGenerator[bytes, None]:
    whole = length == ref.bytes
    check, got, last = Check(ref), 0, b""
    held: dict[str, bytes] = {}
    stored = store.stream(
        ref.key,
        start,
        None if whole else length,
        # on the store's thread as it reads
        examine=check.update if whole else None,
        chunk_bytes=DOWNLOAD_CHUNK_BYTES,
        read_ahead=False,
    )
    async with aclosing(stored) as chunks:
        async for held["chunk"] in chunks:
            got += len(held["chunk"])
            if got < length:
                yield held.pop("chunk")
            elif got == length:
                last = held.pop("chunk")
            else:
                break
    if got != length:
        raise ContentDamaged(f"segment {place}: its size differs from what was written")
    if whole and not check.agrees():
        raise ContentDamaged(f"segment {place}: its bytes differ from what was written")
    yield last
