"""`/api/v1/files`, `/prepare` and `/confirm` (contract §2.5); the first two count as creates."""

import hashlib
from collections.abc import Callable
from contextlib import aclosing

from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute, Docs
from gateway_apiserver.surfaces.temporary_files.creation import TemporaryCreation
from gateway_apiserver.surfaces.temporary_files.models import (
    PreparedFile,
    TemporaryFile,
    TemporaryFileConfirm,
    TemporaryFileCreate,
    TemporaryFilePrepare,
)
from gateway_apiserver.surfaces.temporary_files.objects import CREATE_PATH, TemporaryFiles
from gateway_apiserver.surfaces.temporary_files.streaming import Head, find_media_type
from gateway_apiserver.surfaces.validation import read_body, read_idempotency_key
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
from gateway_core.api.errors import Conflict, NotFound, Unavailable
from gateway_core.api.resource import ObjectRef, put_key
from gateway_core.files.addresses import TICKET_SECONDS, TemporaryAddresses, Ticket
from gateway_core.files.files import clean_filename
from gateway_core.kube.clock import CLOCK
from gateway_core.storage.objects import ObjectMissing, ObjectStore, StoreUnavailable
from gateway_web.responses import Response, to_json

PREPARE_PATH = CREATE_PATH + "/prepare"
CONFIRM_PATH = CREATE_PATH + "/confirm"


class TemporaryRoutes:
    """Create, prepare, confirm. `clock` gives Unix seconds."""

    def __init__(
        self,
        creation: TemporaryCreation,
        files: TemporaryFiles,
        store: ObjectStore,
        addresses: TemporaryAddresses,
        *,
        media_url: str,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._creation = creation
        self._files = files
        self._store = store
        self._addresses = addresses
        self._media_url = media_url.rstrip("/")
        self._clock = clock

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes; the first two count in the rate of creates of files."""
        create = Access(Act.CREATE, creates=True, rate="storage")
        confirm, label = Access(Act.CREATE, creates=True), "temporary_files"
        docs = Docs(
            "createTemporaryFile",
            "Keep a file for a day",
            TemporaryFile,
            status=201,
            body=TemporaryFileCreate,
            makes="file",
        )
        routes.append(CallRoute("POST", CREATE_PATH, self.create, label, create, docs))
        title, body = "Where to put a file", TemporaryFilePrepare
        docs = Docs("prepareTemporaryFile", title, PreparedFile, status=201, body=body)
        routes.append(CallRoute("POST", PREPARE_PATH, self.prepare, label, create, docs))
        docs = Docs(
            "confirmTemporaryFile",
            "Keep what was put",
            TemporaryFile,
            status=201,
            body=TemporaryFileConfirm,
            also=(404, 409, 504),
        )
        routes.append(CallRoute("POST", CONFIRM_PATH, self.confirm, label, confirm, docs))

    async def create(self, call: Call) -> Response:
        """Make a file of a URL or of base64."""
        key = read_idempotency_key(call.headers)
        return to_json(await self._creation.create(call, key), 201)

    async def prepare(self, call: Call) -> Response:
        """Issue a URL to put a file at; its claim is kept while it can be put or confirmed."""
        read_idempotency_key(call.headers)
        wanted = await read_body(call, TemporaryFilePrepare)
        account = call.account
        name = self._files.mint_name(account, None)
        await self._files.claim(account, name, wanted.byte_size)
        key = put_key(account, name)
        now = int(self._clock())
        ticket = Ticket(
            account, name, key, clean_filename(wanted.filename), wanted.byte_size, wanted.md5, now
        )
        url = self._media_url + self._addresses.make_put_path(ticket)
        signed_id = self._addresses.make_signed_id(ticket)
        return to_json({"upload_url": url, "headers": {}, "signed_id": signed_id}, 201)

    async def confirm(self, call: Call) -> Response:
        """Make a file of the bytes that were put. Idempotent."""
        read_idempotency_key(call.headers)
        wanted = await read_body(call, TemporaryFileConfirm)
        ticket = self._addresses.find_ticket(wanted.signed_id, call.account)
        if ticket is None:
            raise _unknown()
        found = await self._files.find(ticket.file_name)
        if found is not None:
            if self._files.is_over(found):
                raise _unknown()
            return to_json(self._files.show(found), 201)
        if self._clock() >= ticket.issued_at + TICKET_SECONDS:
            raise _unknown()
        segment, media_type = await self._read_put(ticket)
        made = await self._files.make(
            call, ticket.file_name, ticket.filename, media_type, segment, owns_bytes=False
        )
        return to_json(made, 201)

    async def _read_put(self, ticket: Ticket) -> tuple[ObjectRef, str]:
        """The bytes that were put, read to compute their digests. Conflict, Unavailable."""
        sha256, md5, size, head = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0, Head()

        def examine(chunk: bytes) -> None:
            sha256.update(chunk)
            md5.update(chunk)

        try:
            async with aclosing(self._store.stream(ticket.key, examine=examine)) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    head.note(chunk)
        except ObjectMissing:
            raise Conflict("Nothing was uploaded yet.") from None
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be read now.") from error
        if (size, md5.hexdigest()) != (ticket.bytes, ticket.md5):
            raise Unavailable("The file cannot be read now.")
        segment = ObjectRef(key=ticket.key, bytes=size, sha256=sha256.hexdigest())
        return segment, find_media_type(head.bytes, ticket.filename)


def _unknown() -> NotFound:
    return NotFound("No upload of this signed_id is known.")
