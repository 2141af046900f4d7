"""Answers of the Kubernetes API: their bodies, and the port's errors for what is not 2xx."""

from collections.abc import AsyncIterator

import aiohttp
import orjson

from gateway_core.adapters.kube.pagesizes import PageTooLong
from gateway_core.ports.records import (
    AlreadyExists,
    Missing,
    NotPermitted,
    Outdated,
    RecordError,
    RecordFull,
    RecordOutcomeUnknown,
    RecordUnavailable,
    Refused,
    WatchExpired,
)

_NO_SPACE = "database space exceeded"
"""In etcd's refusal of every write beyond its quota; it has written nothing then."""


async def read_body(response: aiohttp.ClientResponse, most: int | None) -> bytes:
    """All of it. PageTooLong beyond `most` bytes."""
    if most is None:
        return await response.read()
    chunks, size = list[bytes](), 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > most:
            # the rest is not wanted
            response.close()
            raise PageTooLong
        chunks.append(chunk)
    return b"".join(chunks)


async def read_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length; the reader's own line limit is below the size of a large object."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def raise_for(status: int, raw: bytes, *, writes: bool) -> None:
    """Raises the port's error for an answer other than 2xx; `writes` where it was to a write."""
    try:
        parsed = orjson.loads(raw)
        parsed = parsed.get("object", parsed)
        reason, message = parsed.get("reason", ""), str(parsed.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        reason, message = "", raw[:200].decode(errors="replace")
    kind: type[RecordError]
    match status:
        case 404:
            kind = Missing
        case 409:
            kind = AlreadyExists if reason == "AlreadyExists" else Outdated
        case 410:
            kind = WatchExpired
        case 403:
            kind = NotPermitted
        case 400 | 405 | 413 | 415 | 422:
            kind = Refused
        case 401 | 429:
            kind = RecordUnavailable
        case 500 if _NO_SPACE in message:
            kind = RecordFull
        case _:
            kind = RecordOutcomeUnknown if writes else RecordUnavailable
    raise kind(f"{status} {reason}: {message}"[:1000], status=status, message=message)
