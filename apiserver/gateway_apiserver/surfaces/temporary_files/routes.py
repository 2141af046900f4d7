"""`/api/v1/files`, `/prepare` and `/confirm` (contract §2.5); the first two count as creates."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from gateway_apiserver.admission.authentication import Principal
from gateway_apiserver.context import get_context
from gateway_apiserver.surfaces.bodies import read_idempotency_key, read_json_body
from gateway_apiserver.surfaces.calls import Authorizer, Call
from gateway_apiserver.surfaces.temporary_files.creation import Head, TemporaryCreation
from gateway_apiserver.surfaces.temporary_files.objects import CREATE_PATH, TemporaryFiles
from gateway_apiserver.surfaces.temporary_files.requests import read_preparation, read_signed_id
from gateway_apiserver.surfaces.temporary_files.streaming import find_media_type
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import Conflict, NotFound, Unavailable
from gateway_core.api.resource import ObjectRef, put_key
from gateway_core.billing.counters import FreeRate
from gateway_core.files.addresses import TICKET_SECONDS, TemporaryAddresses, Ticket
from gateway_core.kube.clock import CLOCK
from gateway_core.storage.objects import ObjectMissing, ObjectStore, StoreUnavailable
from gateway_core.tasks.operations import MAX_BODY_BYTES
from gateway_core.tasks.validation import parse_body

PREPARE_PATH = CREATE_PATH + "/prepare"
CONFIRM_PATH = CREATE_PATH + "/confirm"


class TemporaryFile(BaseModel):
    """A file that is kept for a day and read by its address."""

    file_name: str
    url: str = Field(description="Whoever has it may read the file.")
    size_bytes: int
    mime_type: str = Field(description="By its first bytes, else by its name.")
    created_at: str
    expires_at: str


class PreparedFile(BaseModel):
    """Where to put a file's bytes."""

    upload_url: str = Field(description="For one PUT within 15 minutes, without a key.")
    headers: dict[str, str] = Field(description="To be sent with the PUT.")
    signed_id: str = Field(description="To confirm with, within the hour.")


class TemporaryRoutes:
    """The three routes, as a router of `app`'s. `clock` gives Unix seconds."""

    def __init__(
        self,
        door: Authorizer,
        creation: TemporaryCreation,
        files: TemporaryFiles,
        store: ObjectStore,
        addresses: TemporaryAddresses,
        *,
        media_url: str,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._door = door
        self._creation = creation
        self._files = files
        self._store = store
        self._addresses = addresses
        self._media_url = media_url.rstrip("/")
        self._clock = clock
        self.router = APIRouter()
        self.router.add_api_route(CREATE_PATH, self.create, methods=["POST"])
        self.router.add_api_route(PREPARE_PATH, self.prepare, methods=["POST"])
        self.router.add_api_route(CONFIRM_PATH, self.confirm, methods=["POST"])

    async def create(self, request: Request) -> Response:
        """Makes a file of a URL or of base64."""
        call, caller = await self._admit(request, "storage")
        key = read_idempotency_key(call.headers)
        return _answer(await self._creation.create(call, caller, key))

    async def prepare(self, request: Request) -> Response:
        """Says where to put a file; its claim is kept while that can be done, or confirmed."""
        call, caller = await self._admit(request, "storage")
        read_idempotency_key(call.headers)
        wanted = read_preparation(await _read_body(call))
        account = caller.account.name
        name = self._files.mint_name(account, None)
        await self._files.claim(account, name, wanted.bytes)
        key = put_key(account, name)
        now = int(self._clock())
        ticket = Ticket(account, name, key, wanted.filename, wanted.bytes, wanted.md5, now)
        url = self._media_url + self._addresses.make_put_path(ticket)
        signed_id = self._addresses.make_signed_id(ticket)
        return _answer({"upload_url": url, "headers": {}, "signed_id": signed_id})

    async def confirm(self, request: Request) -> Response:
        """Makes a file of what was put; the same one each time."""
        call, caller = await self._admit(request)
        read_idempotency_key(call.headers)
        signed_id = read_signed_id(await _read_body(call))
        ticket = self._addresses.find_ticket(signed_id, caller.account.name)
        if ticket is None:
            raise _unknown()
        found = await self._files.find(ticket.file_name)
        if found is not None:
            if self._files.is_over(found):
                raise _unknown()
            return _answer(self._files.show(found))
        if self._clock() >= ticket.issued_at + TICKET_SECONDS:
            raise _unknown()
        segment, media_type = await self._read_put(ticket)
        return _answer(
            await self._files.make(
                caller,
                ticket.file_name,
                ticket.filename,
                media_type,
                segment,
                request_id=call.trace.request_id,
                owns_bytes=False,
            )
        )

    async def _read_put(self, ticket: Ticket) -> tuple[ObjectRef, str]:
        """What was put, read whole: its digest is not known otherwise. Conflict, Unavailable."""
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

    async def _admit(
        self, request: Request, rate: FreeRate | None = None
    ) -> tuple[Call, Principal]:
        trace = get_context(request.scope)
        trace.route = "temporary_files"
        call = Call(request.scope, request.receive, request._send, trace, ())
        return call, await self._door.admit(call, Act.CREATE, creates=True, rate=rate)


async def _read_body(call: Call) -> dict[str, Any]:
    return parse_body(await read_json_body(call.headers, call.receive, MAX_BODY_BYTES))


def _unknown() -> NotFound:
    return NotFound("No upload of this signed_id is known.")


def _answer(body: Mapping[str, Any]) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(orjson.dumps(body), 201, media_type="application/json", headers=headers)
