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
    text = f"{status} {reason}: {message}"[:1000]
    if status == 404:
        raise Missing(text)
    if status == 409:
        raise (AlreadyExists if reason == "AlreadyExists" else Outdated)(text)
    if status == 410:
        raise WatchExpired(text)
    if status == 403:
        raise NotPermitted(text)
    if status in (400, 405, 413, 415, 422):
        raise Refused(text)
    if status in (401, 429):
        raise RecordUnavailable(text)
    if status == 500 and _NO_SPACE in message:
        raise RecordFull(text)
    raise (RecordOutcomeUnknown if writes else RecordUnavailable)(text)
