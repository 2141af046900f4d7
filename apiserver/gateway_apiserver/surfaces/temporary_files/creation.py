"""Bytes of temporary files are stored, from a URL or from base64 (contract §2.5)."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from starlette.routing import BaseRoute

from gateway_apiserver.access import Caller
from gateway_apiserver.endpoints import Call, CallRoute, Docs
from gateway_apiserver.surfaces.files.writing import FileTooLarge, FileWriter
from gateway_apiserver.surfaces.temporary_files.models import (
    Source,
    TemporaryFile,
    TemporaryFileCreate,
    read_source,
    refuse_source,
)
from gateway_apiserver.surfaces.temporary_files.objects import CREATE_PATH, TemporaryFiles
from gateway_apiserver.surfaces.temporary_files.streaming import (
    BadBase64,
    Base64Decoder,
    Head,
    LongBody,
    find_media_type,
)
from gateway_apiserver.surfaces.validation import read_idempotency_key
from gateway_core.accounts.records import AccountRecord
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
from gateway_core.api.errors import TooLarge
from gateway_core.files.fetching import Fetcher, FetchFailed
from gateway_core.files.files import USER_DATA_BYTES
from gateway_core.storage.objects import StoredObject
from gateway_core.tasks.validation import fingerprint, parse_body
from gateway_web.middleware.bodies import read_chunks, read_json_length
from gateway_web.responses import Response, to_json

MOST_BODY_BYTES = 80 * 1024 * 1024
"""Base64 of the largest file is 70 MB, and whitespace may be in it."""
_SLACK_BYTES = 64 * 1024


class TemporaryCreation:
    """`POST /api/v1/files`, whose body is decoded while it arrives."""

    def __init__(self, files: TemporaryFiles, writer: FileWriter, fetcher: Fetcher) -> None:
        self._files = files
        self._writer = writer
        self._fetcher = fetcher

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the route; it counts in the rate of creates of files."""
        docs = Docs(
            "createTemporaryFile",
            "Store a file for a day",
            TemporaryFile,
            status=201,
            body=TemporaryFileCreate,
            makes="file",
        )
        access = Access(Act.CREATE, creates=True, rate="storage")
        routes.append(CallRoute("POST", CREATE_PATH, self.create, "temporary_files", access, docs))

    async def create(self, call: Call) -> Response:
        """Make a file of a URL or of base64."""
        key = read_idempotency_key(call.headers)
        return to_json(await self._create(call, key), 201)

    async def _create(self, call: Call, key: str | None) -> TemporaryFile:
        """Return the response for the file that the call's body describes.

        Raises UnsupportedMediaType, TooLarge, InvalidRequest, KeyReused, StorageFull, Unavailable,
        OutcomeUnknown.
        """
        declared, too_large = read_json_length(call.headers), FileTooLarge(USER_DATA_BYTES)
        if declared > MOST_BODY_BYTES:
            raise too_large
        account = call.account
        # an earlier call is answered again, however full the storage is by now
        earlier = await self._files.find(self._files.mint_name(account, key)) if key else None
        if earlier is None:
            await self._files.check_room(account, max(0, declared - _SLACK_BYTES) * 3 // 4)
        body = LongBody(read_chunks(call.receive, MOST_BODY_BYTES, too_large))
        is_long = await body.find_long()
        source = None if is_long else read_source(parse_body(body.kept))
        name = self._files.mint_name(account, key)
        place = self._files.choose_place(account, name)
        head = Head()
        if source is None or source.data is not None:
            texts = body.stream() if source is None else _give(source)
            content = _decode(texts, body, source, head)
            stored = await self._writer.store(call.caller.account, place, content, USER_DATA_BYTES)
            source = source or read_source(parse_body(body.kept))
            values = {"sha256": stored.sha256, "file_name": source.filename}
        else:
            assert source.url is not None
            values = {"url": source.url, "file_name": source.filename}
            found = await self._files.find(name) if key is not None else None
            if found is not None:
                return self._files.replay(found, fingerprint(values))
            stored = await self._fetch(place, source.url, call.caller.account, head)
        return await self._files.make(
            Caller(call.caller, call.context),
            name,
            source.filename,
            find_media_type(head.bytes, source.filename),
            stored.refer(),
            fingerprint=None if key is None else fingerprint(values),
        )

    async def _fetch(
        self, place: str, url: str, account: AccountRecord, head: Head
    ) -> StoredObject:
        try:
            async with self._fetcher.open(url, account.name) as fetched:
                if (fetched.length or 0) > USER_DATA_BYTES:
                    raise FileTooLarge(USER_DATA_BYTES)
                content = _watch(fetched.chunks, head)
                return await self._writer.store(account, place, content, USER_DATA_BYTES)
        except FetchFailed as error:
            raise refuse_source(str(error)) from error


async def _give(source: Source) -> AsyncGenerator[bytes, None]:
    assert source.data is not None
    yield source.data.encode()


async def _decode(
    texts: AsyncGenerator[bytes, None], body: LongBody, source: Source | None, head: Head
) -> AsyncGenerator[bytes, None]:
    """Yield the decoded bytes; raises before their end unless the whole body is valid."""
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
