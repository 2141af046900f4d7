"""The four endpoints of `/v1/uploads` (contract §4)."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict

import structlog
from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute, Docs, UnlistedRoute
from gateway_apiserver.surfaces.files.models import render_file
from gateway_apiserver.surfaces.forms import Form
from gateway_apiserver.surfaces.uploads.models import (
    PART_FORM,
    Upload,
    UploadComplete,
    UploadCreate,
    UploadPart,
)
from gateway_apiserver.surfaces.uploads.service import UploadService
from gateway_apiserver.surfaces.validation import (
    missing,
    read_object,
    read_openai_body,
)
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
from gateway_core.api.errors import Conflict, InvalidRequest, NotFound, TooLarge, Unavailable
from gateway_core.files.parts import UploadParts
from gateway_core.files.uploads import MOST_PART_BYTES, render_part, render_upload
from gateway_core.kube.clock import CLOCK
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.limits import StreamLimiter
from gateway_core.storage.objects import StoreUnavailable
from gateway_web.responses import Response, to_json

PATH = "/v1/uploads"
ENVELOPE_BYTES = 64 * 1024
"""What of a part's Content-Length may be the form around it."""
_log = structlog.get_logger(__name__)


class UploadRoutes:
    """Create, add parts, complete, cancel; there is no list and no GET (§4.6).

    `count` is called with the size of each stored part.
    """

    def __init__(
        self,
        service: UploadService,
        parts: UploadParts,
        count: Callable[[int], None],
        streams: StreamLimiter,
        *,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._service = service
        self._parts = parts
        self._count = count
        self._streams = streams
        self._clock = clock

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        create = Access(Act.CREATE, creates=True, rate="storage")
        change, one = Access(Act.CREATE, creates=True), PATH + "/{upload_id}"
        title, also = "Begin a file in parts", (409, 504)
        docs = Docs("createUpload", title, Upload, body=UploadCreate, makes="Upload")
        routes.append(UnlistedRoute("POST", PATH, self.create, "uploads_create", create, docs))
        docs = Docs("addUploadPart", "Send a part", UploadPart, form=PART_FORM, also=also)
        routes.append(
            CallRoute("POST", f"{one}/parts", self.add_part, "uploads_parts", change, docs)
        )
        title = "Make the File of its parts"
        docs = Docs("completeUpload", title, Upload, body=UploadComplete, also=also)
        routes.append(
            CallRoute("POST", f"{one}/complete", self.complete, "uploads_complete", change, docs)
        )
        docs = Docs(
            "cancelUpload",
            "Give an Upload up",
            Upload,
            body={"type": "object"},
            has_optional_body=True,
            also=also,
        )
        cancel = Access(Act.CREATE)
        routes.append(
            CallRoute("POST", f"{one}/cancel", self.cancel, "uploads_cancel", cancel, docs)
        )

    async def create(self, call: Call) -> Response:
        """Create an Upload, and reserve its bytes."""
        wanted = await read_openai_body(call, UploadCreate)
        wanted.check_size()
        obj, replayed = await self._service.create(call, wanted)
        return to_json(render_upload(obj), replayed=replayed)

    async def add_part(self, call: Call) -> Response:
        """Store a part; parts may arrive concurrently."""
        account, wire_id = call.account, call.wire_id
        form = Form(call.headers, call.receive, "data", is_named=False)
        expected = max(0, call.declared_length - ENVELOPE_BYTES)
        if expected > MOST_PART_BYTES:
            raise _too_large()
        if not await form.find_file():
            raise missing("data")
        with _answering():
            async with aclosing(form.stream()) as source:
                try:
                    obj = await self._service.find_open(account, wire_id)
                except (NotFound, Conflict):
                    # errors of the body come first (§0.9)
                    await _drain(source)
                    raise
                try:
                    async with self._streams.take(account):
                        part = await self._parts.add(obj, source, expected)
                except (StoreUnavailable, CountersStale):
                    # an Upload that has ended since has no counts, and perhaps no folder any more
                    await self._service.find_open(account, wire_id)
                    raise
            try:
                # an outcome that was written since does not include the part
                await self._service.find_open(account, wire_id)
            except (NotFound, Conflict):
                await self._parts.discard(obj, part.id)
                raise
        self._count(part.bytes)
        return to_json(render_part(part.id, obj["metadata"]["name"], self._clock()))

    async def complete(self, call: Call) -> Response:
        """Make the File of an Upload's parts."""
        wanted = await read_openai_body(call, UploadComplete)
        with _answering():
            obj, file = await self._service.complete(call.account, call.wire_id, wanted)
        return to_json(render_upload(obj, asdict(render_file(file))))

    async def cancel(self, call: Call) -> Response:
        """Cancel an Upload. Idempotent."""
        await read_object(call, optional=True)
        obj = await self._service.cancel(call.account, call.wire_id)
        return to_json(render_upload(obj))


@contextmanager
def _answering() -> Iterator[None]:
    """Raise Unavailable if the object store or the counters are unavailable."""
    try:
        yield
    except (StoreUnavailable, CountersUnavailable, CountersStale) as error:
        _log.warning("an upload's parts cannot be stored or read", error=str(error))
        raise Unavailable("Parts cannot be stored or read now.", retry_after=1) from error


async def _drain(source: AsyncIterator[bytes]) -> None:
    """Read a part to its end and drop it. InvalidRequest, TooLarge."""
    size = 0
    async for chunk in source:
        size += len(chunk)
        if size > MOST_PART_BYTES:
            raise _too_large()
    if not size:
        raise InvalidRequest("A part must have at least one byte.", code="empty_part", param="data")


def _too_large() -> TooLarge:
    return TooLarge(
        f"A part must have at most {MOST_PART_BYTES} bytes.", code="part_too_large", param="data"
    )
