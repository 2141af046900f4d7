"""The parts of an Upload, which are streamed into the object store (contract §4.2).

`routers.uploads` has the other operations.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute, Docs
from gateway_apiserver.surfaces.forms import Form
from gateway_apiserver.surfaces.uploads.models import PART_FORM, UploadPart, render_part
from gateway_apiserver.surfaces.uploads.service import PATH, UploadService, reading_parts
from gateway_apiserver.surfaces.validation import missing
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
from gateway_core.api.errors import Conflict, InvalidRequest, NotFound, TooLarge
from gateway_core.files.parts import UploadParts
from gateway_core.files.uploads import MOST_PART_BYTES
from gateway_core.kube.clock import CLOCK
from gateway_core.redis.link import CountersStale
from gateway_core.storage.limits import StreamLimiter
from gateway_core.storage.objects import StoreUnavailable
from gateway_web.responses import Response, to_json

ENVELOPE_BYTES = 64 * 1024
"""What of a part's Content-Length may be the form around it."""


class PartUploads:
    """Takes parts; `count` is called with the size of each one that is stored."""

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
        """Add the route."""
        docs = Docs("addUploadPart", "Upload a part", UploadPart, form=PART_FORM, also=(409, 504))
        access, path = Access(Act.CREATE, creates=True), PATH + "/{upload_id}/parts"
        routes.append(CallRoute("POST", path, self.add, "uploads_parts", access, docs))

    async def add(self, call: Call) -> Response:
        """Store a part; parts may arrive concurrently."""
        account, wire_id = call.account, call.wire_id
        form = Form(call.headers, call.receive, "data", is_named=False)
        expected = max(0, call.declared_length - ENVELOPE_BYTES)
        if expected > MOST_PART_BYTES:
            raise _too_large()
        if not await form.find_file():
            raise missing("data")
        with reading_parts():
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
