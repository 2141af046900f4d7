"""The four endpoints of `/v1/uploads` (contract §4)."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager

import structlog

from gateway_apiserver.concurrency import StreamLimiter
from gateway_apiserver.context import Header
from gateway_apiserver.surfaces.bodies import missing, read_idempotency_key, read_object
from gateway_apiserver.surfaces.calls import Authorizer, Call, Endpoint, Endpoints
from gateway_apiserver.surfaces.forms import Form
from gateway_apiserver.surfaces.uploads.creation import UploadCreation
from gateway_apiserver.surfaces.uploads.requests import read_completion, read_upload
from gateway_apiserver.surfaces.uploads.service import UploadService
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import Conflict, InvalidRequest, NotFound, TooLarge, Unavailable
from gateway_core.files.files import render_file
from gateway_core.files.parts import UploadParts
from gateway_core.files.quota_counters import StorageStale, StorageUnavailable
from gateway_core.files.uploads import MOST_PART_BYTES, render_part, render_upload
from gateway_core.kube.clock import CLOCK
from gateway_core.storage.objects import StoreUnavailable

ENVELOPE_BYTES = 64 * 1024
"""What of a part's Content-Length may be the form around it."""
REPLAYED: Header = (b"idempotent-replayed", b"true")
_log = structlog.get_logger(__name__)


class UploadRoutes:
    """Everything below `/v1/uploads`; there is no list and no GET (§4.6).

    `count` is told the bytes of each part that was stored.
    """

    def __init__(
        self,
        door: Authorizer,
        creation: UploadCreation,
        desk: UploadService,
        parts: UploadParts,
        count: Callable[[int], None],
        places: StreamLimiter,
        *,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._door = door
        self._creation = creation
        self._desk = desk
        self._parts = parts
        self._count = count
        self._places = places
        self._clock = clock
        self.endpoints: Endpoints = {
            "uploads": {"POST": Endpoint("uploads_create", self.create)},
            "uploads/{upload_id}/parts": {"POST": Endpoint("uploads_parts", self.add_part)},
            "uploads/{upload_id}/complete": {"POST": Endpoint("uploads_complete", self.complete)},
            "uploads/{upload_id}/cancel": {"POST": Endpoint("uploads_cancel", self.cancel)},
        }

    async def create(self, call: Call) -> None:
        """A new Upload; its bytes are reserved."""
        caller = await self._door.admit(call, Act.CREATE, creates=True, rate="storage")
        wanted = read_upload(await read_object(call))
        key = read_idempotency_key(call.headers)
        obj, replayed = await self._creation.create(caller, wanted, key, call.trace.request_id)
        await call.reply(render_upload(obj), *([REPLAYED] if replayed else []))

    async def add_part(self, call: Call) -> None:
        """A part, whatever others arrive meanwhile."""
        caller = await self._door.admit(call, Act.CREATE, creates=True)
        account, (wire_id,) = caller.account.name, call.ids
        form = Form(call.headers, call.receive, "data", is_named=False)
        expected = max(0, _read_length(call) - ENVELOPE_BYTES)
        if expected > MOST_PART_BYTES:
            raise _too_large()
        if not await form.find_file():
            raise missing("data")
        with _answering():
            async with aclosing(form.stream()) as source:
                try:
                    obj = await self._desk.find_open(account, wire_id)
                except (NotFound, Conflict):
                    # what is wrong with the body goes first (§0.9)
                    await _drain(source)
                    raise
                try:
                    async with self._places.take(account):
                        part = await self._parts.add(obj, source, expected)
                except StoreUnavailable:
                    # the folder of an Upload that has ended meanwhile may be gone
                    await self._desk.find_open(account, wire_id)
                    raise
            try:
                # an outcome that was written meanwhile has none of it
                await self._desk.find_open(account, wire_id)
            except (NotFound, Conflict):
                await self._parts.discard(obj, part.id)
                raise
        self._count(part.bytes)
        await call.reply(render_part(part.id, obj["metadata"]["name"], self._clock()))

    async def complete(self, call: Call) -> None:
        """The Upload with its File."""
        caller = await self._door.admit(call, Act.CREATE, creates=True)
        wanted = read_completion(await read_object(call))
        with _answering():
            obj, file = await self._desk.complete(caller.account.name, call.ids[0], wanted)
        await call.reply(render_upload(obj, render_file(file)))

    async def cancel(self, call: Call) -> None:
        """The Upload, of which nothing comes."""
        caller = await self._door.admit(call, Act.CREATE)
        await read_object(call, optional=True)
        obj = await self._desk.cancel(caller.account.name, call.ids[0])
        await call.reply(render_upload(obj))


@contextmanager
def _answering() -> Iterator[None]:
    """Goes around what the stores do, which may be away."""
    try:
        yield
    except (StoreUnavailable, StorageUnavailable, StorageStale) as error:
        _log.warning("an upload's parts cannot be stored or read", error=str(error))
        raise Unavailable("Parts cannot be stored or read now.", retry_after=1) from error


async def _drain(source: AsyncIterator[bytes]) -> None:
    """Reads a body that nobody wants. InvalidRequest, TooLarge for what is wrong with it."""
    size = 0
    async for chunk in source:
        size += len(chunk)
        if size > MOST_PART_BYTES:
            raise _too_large()
    if not size:
        raise InvalidRequest("A part must have at least one byte.", code="empty_part", param="data")


def _read_length(call: Call) -> int:
    text = dict(call.headers).get(b"content-length", b"0")
    return int(text) if text.isdigit() else 0


def _too_large() -> TooLarge:
    return TooLarge(
        f"A part must have at most {MOST_PART_BYTES} bytes.", code="part_too_large", param="data"
    )
