"""Bytes of temporary files on their way into the store, from a URL or of base64 (contract §2.5)."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.bodies import JSON_TYPE
from gateway_apiserver.surfaces.temporary_files.models import Source, read_source, refuse_source
from gateway_apiserver.surfaces.temporary_files.objects import TemporaryFiles
from gateway_apiserver.surfaces.temporary_files.streaming import (
    HEAD_BYTES,
    BadBase64,
    Base64Decoder,
    LongBody,
    find_media_type,
)
from gateway_core.accounts.authentication import Principal
from gateway_core.api.errors import TooLarge, Unavailable, UnsupportedMediaType
from gateway_core.files.fetching import Fetcher, FetchFailed
from gateway_core.files.files import USER_DATA_BYTES
from gateway_core.storage.limits import StreamLimiter
from gateway_core.storage.objects import (
    ObjectStore,
    ObjectTooLarge,
    StoredObject,
    StoreUnavailable,
)
from gateway_core.tasks.validation import fingerprint, parse_body

MOST_BODY_BYTES = 80 * 1024 * 1024
"""Base64 of the largest file is 70 MB, and whitespace may be in it."""
_SLACK_BYTES = 64 * 1024

_log = structlog.get_logger(__name__)


class FileTooLarge(TooLarge):
    """More bytes than a temporary file may have."""

    code = "file_too_large"

    def __init__(self) -> None:
        super().__init__(f"The file may have at most {USER_DATA_BYTES} bytes.")


class TemporaryCreation:
    """`POST /api/v1/files`."""

    def __init__(
        self, files: TemporaryFiles, store: ObjectStore, fetcher: Fetcher, streams: StreamLimiter
    ) -> None:
        self._files = files
        self._store = store
        self._fetcher = fetcher
        self._streams = streams

    async def create(self, call: Call, caller: Principal, key: str | None) -> dict[str, Any]:
        """The answer for the file that the call's body describes.

        Raises UnsupportedMediaType, TooLarge, InvalidRequest, KeyReused, StorageFull, Unavailable,
        OutcomeUnknown.
        """
        declared = _check_head(call)
        account = caller.account.name
        # what is there already is answered again, however full the storage is by now
        earlier = await self._files.find(self._files.mint_name(account, key)) if key else None
        if earlier is None:
            await self._files.check_room(account, max(0, declared - _SLACK_BYTES) * 3 // 4)
        body = LongBody(_read_chunks(call.receive))
        is_long = await body.find_long()
        source = None if is_long else read_source(parse_body(body.kept))
        name = self._files.mint_name(account, key)
        place = self._files.choose_place(account, name)
        head = Head()
        if source is None or source.data is not None:
            texts = body.stream() if source is None else _give(source)
            async with self._streams.take(account):
                stored = await self._store_bytes(place, _decode(texts, body, source, head))
            source = source or read_source(parse_body(body.kept))
            values = {"sha256": stored.sha256, "file_name": source.filename}
        else:
            assert source.url is not None
            values = {"url": source.url, "file_name": source.filename}
            found = await self._files.find(name) if key is not None else None
            if found is not None:
                return self._files.replay(found, fingerprint(values))
            async with self._streams.take(account):
                stored = await self._fetch(place, source.url, account, head)
        return await self._files.make(
            caller,
            name,
            source.filename,
            find_media_type(head.bytes, source.filename),
            stored.refer(),
            request_id=call.context.request_id,
            owns_bytes=True,
            fingerprint=None if key is None else fingerprint(values),
        )

    async def _fetch(self, place: str, url: str, account: str, head: "Head") -> StoredObject:
        try:
            async with self._fetcher.open(url, account) as fetched:
                if (fetched.length or 0) > USER_DATA_BYTES:
                    raise FileTooLarge
                return await self._store_bytes(place, _watch(fetched.chunks, head))
        except FetchFailed as error:
            raise refuse_source(str(error)) from error

    async def _store_bytes(self, place: str, source: AsyncGenerator[bytes, None]) -> StoredObject:
        began = time.monotonic()
        async with aclosing(source):
            try:
                return await self._store.put_stream(place, source, max_bytes=USER_DATA_BYTES)
            except ObjectTooLarge:
                raise FileTooLarge from None
            except StoreUnavailable as error:
                seconds = round(time.monotonic() - began, 1)
                _log.warning("a file could not be stored", error=str(error), seconds=seconds)
                raise Unavailable("The file cannot be stored now.") from error


class Head:
    """The first bytes of what goes by."""

    def __init__(self) -> None:
        self.bytes = b""

    def note(self, chunk: bytes) -> None:
        """Keeps what is wanted of a chunk."""
        if len(self.bytes) < HEAD_BYTES:
            self.bytes += chunk[: HEAD_BYTES - len(self.bytes)]


def _check_head(call: Call) -> int:
    """The declared length of the body, 0 where there is none. UnsupportedMediaType, TooLarge."""
    given = dict(call.headers)
    kind = given.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != JSON_TYPE.encode():
        raise UnsupportedMediaType(JSON_TYPE)
    text = given.get(b"content-length", b"")
    declared = int(text) if text.isdigit() else 0
    if declared > MOST_BODY_BYTES:
        raise FileTooLarge
    return declared


async def _read_chunks(receive: Receive) -> AsyncIterator[bytes]:
    total = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        total += len(chunk)
        if total > MOST_BODY_BYTES:
            raise FileTooLarge
        if chunk:
            yield chunk
        if not message.get("more_body"):
            return


async def _give(source: Source) -> AsyncGenerator[bytes, None]:
    assert source.data is not None
    yield source.data.encode()


async def _decode(
    texts: AsyncGenerator[bytes, None], body: LongBody, source: Source | None, head: Head
) -> AsyncGenerator[bytes, None]:
    """The bytes of base64; raises before the end unless the whole body is good."""
    decoder, size = Base64Decoder(), 0
    try:
        async with aclosing(texts):
            async for text in texts:
                if chunk := decoder.decode(text):
                    size += len(chunk)
                    head.note(chunk)
                    yield chunk
        if chunk := decoder.finish():
            size += len(chunk)
            head.note(chunk)
            yield chunk
    except BadBase64 as error:
        raise refuse_source(str(error)) from None
    if source is None and read_source(parse_body(body.kept)).data != body.marker:
        raise TooLarge("The body is too large: only `source.data` may be long.")
    if not size:
        raise refuse_source("is empty")


async def _watch(chunks: AsyncIterator[bytes], head: Head) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        head.note(chunk)
        yield chunk
    if not size:
        raise refuse_source("is empty")
