"""Content of stored Files: digests, owners of object keys, and streams of their segments."""

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import xxhash

from gateway_core.api.resource import (
    BATCHES_FOLDER,
    FILES_FOLDER,
    TEMPORARY_FOLDER,
    UPLOADS_FOLDER,
    ObjectRef,
    file_key,
    temporary_key,
    upload_folder,
)
from gateway_core.storage.objects import DOWNLOAD_CHUNK_BYTES, ObjectStore


class Digests:
    """Both digests of bytes that are given in order, each in hex."""

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self._sha256 = hashlib.sha256(data)
        self._xxh3 = xxhash.xxh3_128(data)

    def update(self, data: bytes | bytearray) -> None:
        """Adds bytes. Blocking: a MiB takes about a millisecond."""
        self._sha256.update(data)
        self._xxh3.update(data)

    @property
    def sha256(self) -> str:
        """By which others may check the bytes."""
        return self._sha256.hexdigest()

    @property
    def xxh3(self) -> str:
        """By which the gateway does, each time it reads them."""
        return self._xxh3.hexdigest()


FOLDERS = (BATCHES_FOLDER, FILES_FOLDER, TEMPORARY_FOLDER, UPLOADS_FOLDER)
"""Where bytes lie that a file, an upload or a batch is answerable for."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a key is: the folder it is in, the account, and the object's name."""

    folder: str
    account: str
    name: str


def read_owner(key: str) -> Owner | None:
    """Whose `key` is; None of one that the gateway does not write."""
    for folder in FOLDERS:
        if key.startswith(folder):
            account, slash, rest = key.removeprefix(folder).partition("/")
            name = rest.partition("/")[0]
            return Owner(folder, account, name) if slash and account and name else None
    return None


def pool_of(file: Object) -> Literal["files", "temporary"]:
    """The pool of its account's storage that a GatewayFile counts in."""
    return "temporary" if file["spec"]["request"]["purpose"] == "temporary" else "files"


def list_keys(file: Object) -> list[str]:
    """Where the bytes of a GatewayFile lie, in order."""
    return [segment["key"] for segment in file["spec"]["request"]["segments"]]


def find_foreign(file: Object) -> list[str]:
    """Keys that a GatewayFile names and that lie in no place of its own.

    The gateway writes none such; who makes the object by hand may name any.
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
    """The store has other bytes than were stored; the text names the segment's place."""


class Check:
    """Compares bytes that are given in order with those that were stored.

    By XXH3, a small part of what a download costs, where SHA-256 is most of it: what is looked for
    are accidents. By SHA-256 where the reference has nothing else.
    """

    def __init__(self, ref: ObjectRef) -> None:
        self._digest = hashlib.sha256() if ref.xxh3 is None else xxhash.xxh3_128()
        self._expected = ref.xxh3 or ref.sha256
        self.update = self._digest.update

    def agrees(self) -> bool:
        """Whether they were all of them, and no others."""
        return self._digest.hexdigest() == self._expected


def read_segments(file: Mapping[str, Any]) -> list[ObjectRef]:
    """The segments of a GatewayFile, in order."""
    return [ObjectRef.model_validate(ref) for ref in file["spec"]["request"]["segments"]]


async def stream_content(
    store: ObjectStore, segments: Sequence[ObjectRef], start: int = 0, length: int | None = None
) -> AsyncGenerator[bytes, None]:
    """Bytes from `start`, at most `length`, of all segments one after the other.

    Chunks are at most 80 KiB; nothing here keeps one that was given, so a slow client holds one.
    Raises ContentDamaged, ObjectMissing, StoreUnavailable. Who leaves it early closes it.
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
            # a plain variable would hold the chunk until the next one
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
        # by the store as it reads them
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
        raise ContentDamaged(f"segment {place}: not as many bytes as were stored")
    if whole and not check.agrees():
        raise ContentDamaged(f"segment {place}: not the bytes that were stored")
    yield last
