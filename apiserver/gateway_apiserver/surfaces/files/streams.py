"""The operations of `/v1/files` that take or send bytes (contract §3.1, §3.4).

`routers.files` has the others.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import structlog
from starlette.routing import BaseRoute

from gateway_apiserver.content import Content, ContentSender, write_disposition
from gateway_apiserver.endpoints import Call, CallRoute, Docs
from gateway_apiserver.metrics import ApiMetrics
from gateway_apiserver.surfaces.files.creation import FileCreation
from gateway_apiserver.surfaces.files.finder import FileFinder, read_found
from gateway_apiserver.surfaces.files.models import FORM, render_file
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
from gateway_core.api.errors import Internal
from gateway_core.api.resource import ObjectRef
from gateway_core.files.files import FileRecord
from gateway_core.storage.content import read_segments, stream_content
from gateway_core.storage.objects import ObjectMissing, ObjectStore
from gateway_web.responses import Response, to_json

PATH = "/v1/files"
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

_log = structlog.get_logger(__name__)


class FileStreams:
    """Create and content."""

    def __init__(
        self,
        finder: FileFinder,
        creation: FileCreation,
        store: ObjectStore,
        sender: ContentSender,
        metrics: ApiMetrics,
    ) -> None:
        self._finder = finder
        self._creation = creation
        self._store = store
        self._sender = sender
        self._metrics = metrics

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        create = Access(Act.CREATE, creates=True, rate="storage")
        docs = Docs("createFile", "Store a file", {"oneOf": ["File"]}, form=FORM, also=(504,))
        routes.append(CallRoute("POST", PATH, self.create, "files_create", create, docs))
        docs = Docs(
            "readFileContent",
            "Read the bytes of a file",
            also=(416,),
            responses={
                "200": {"description": "All of them.", "content": _BYTES},
                "206": {"description": "The one range that was asked for.", "content": _BYTES},
                "304": {"description": "They are those of the ETag that was sent."},
            },
        )
        path = PATH + "/{file_id}/content"
        routes.append(CallRoute("GET", path, self.send_content, "files_content", Access(), docs))

    async def create(self, call: Call) -> Response:
        """Store a file of one multipart form."""
        made = await self._creation.create(call)
        self._finder.upsert(made)
        record = read_found(made)
        self._metrics.count_bytes("files", "in", record.bytes)
        return to_json(asdict(render_file(record)))

    async def send_content(self, call: Call) -> None:
        """Send a file's bytes."""
        account, wire_id = call.account, call.wire_id
        obj = await self._finder.find(account, wire_id)
        try:
            content = self._open(read_found(obj), read_segments(obj))
            await self._sender.send(call.scope, call.receive, call.send, content)
        except ObjectMissing as error:
            # deleted since, or lost
            await self._finder.find(account, wire_id)
            _log.error("a file's bytes are missing", file=obj["metadata"]["name"])
            raise Internal("The file's bytes are missing.") from error

    def _open(self, record: FileRecord, segments: Sequence[ObjectRef]) -> Content:
        """Return a File's bytes; its name is never reused, so it is also the version."""
        return Content(
            size=record.bytes,
            tag=b'"%s"' % record.name.encode(),
            cache_control=b"private, no-cache",
            headers=[
                (b"content-type", b"application/octet-stream"),
                (b"content-disposition", write_disposition(record.filename)),
            ],
            holder=record.account,
            link=record.name,
            open=partial(stream_content, self._store, segments),
        )
