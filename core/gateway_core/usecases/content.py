"""The bytes of a File, streamed from its segments; never more wrong ones than can be helped.

Used by whoever sends or reads a File: its content, the media host, a Batch's input. A segment that
is read whole is compared with its digest while it goes by, and its last bytes are only given once
it agrees: a reader either gets all bytes as they were stored, or an error before the end.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from gateway_core.contract.stored import ObjectRef
from gateway_core.ports.objects import ObjectStore


class ContentDamaged(Exception):
    """The store has other bytes than were stored; the text names the segment's place."""


def read_segments(file: Mapping[str, Any]) -> list[ObjectRef]:
    """The segments of a GatewayFile, in order."""
    return [ObjectRef.model_validate(ref) for ref in file["spec"]["request"]["segments"]]


async def stream_content(
    store: ObjectStore, segments: Sequence[ObjectRef], start: int = 0, length: int | None = None
) -> AsyncGenerator[bytes, None]:
    """Bytes from `start`, at most `length`, of all segments one after the other.

    Chunks are at most 1 MiB. Raises ContentDamaged, ObjectMissing, StoreUnavailable. Who leaves it
    early closes it.
    """
    left = sum(ref.bytes for ref in segments) - start if length is None else length
    for place, ref in enumerate(segments):
        if left <= 0:
            return
        if start >= ref.bytes:
            start -= ref.bytes
            continue
        wanted = min(ref.bytes - start, left)
        async with aclosing(_stream_segment(store, ref, place, start, wanted)) as chunks:
            async for chunk in chunks:
                yield chunk
        start, left = 0, left - wanted


async def _stream_segment(
    store: ObjectStore, ref: ObjectRef, place: int, start: int, length: int
) -> AsyncGenerator[bytes, None]:
    whole = length == ref.bytes
    digest, got, held = hashlib.sha256(), 0, b""
    loop = asyncio.get_running_loop()
    async with (
        aclosing(store.stream(ref.key, start, None if whole else length)) as stored,
        aclosing(_read_ahead(stored)) as chunks,
    ):
        async for chunk in chunks:
            got += len(chunk)
            if got > length:
                break
            if whole:
                # on a thread, so that one is digested while the one before it is sent
                digested = loop.run_in_executor(None, digest.update, chunk)
                try:
                    if held:
                        yield held
                finally:
                    await digested
            elif held:
                yield held
            held = chunk
    if got != length:
        raise ContentDamaged(f"segment {place}: not as many bytes as were stored")
    if whole and digest.hexdigest() != ref.sha256:
        raise ContentDamaged(f"segment {place}: not the bytes that were stored")
    if held:
        yield held


async def _read_ahead(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The chunks; each is read while whoever uses this is at work with the one before it."""
    coming = asyncio.ensure_future(anext(chunks, b""))
    try:
        while chunk := await coming:
            coming = asyncio.ensure_future(anext(chunks, b""))
            yield chunk
    finally:
        if not coming.done():
            coming.cancel()
        # what went wrong with bytes that nobody waits for is nobody's matter
        with suppress(asyncio.CancelledError, Exception):
            await coming
