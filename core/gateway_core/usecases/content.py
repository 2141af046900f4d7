"""The bytes of a File, streamed from its segments; never more wrong ones than can be helped.

Used by whoever sends or reads a File: its content, the media host, a Batch's input. A segment that
is read whole is compared with its digest while it goes by, and its last bytes are only given once
it agrees: a reader either gets all bytes as they were stored, or an error before the end.
"""

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import xxhash

from gateway_core.contract.stored import ObjectRef
from gateway_core.ports.objects import DOWNLOAD_CHUNK_BYTES, ObjectStore


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
