"""The endpoints of `/v1/files` (contract §3). None is counted in the rate (§12.1)."""

from collections.abc import Sequence
from functools import partial

import structlog
from starlette.routing import BaseRoute

from gateway_apiserver.content import Content, ContentSender, write_disposition
from gateway_apiserver.endpoints import Call, CallRoute, Docs
from gateway_apiserver.metrics import ApiMetrics
from gateway_apiserver.surfaces.files.creation import FileCreation
from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_apiserver.surfaces.files.models import FORM, DeletedFile, File, FileQuery
from gateway_apiserver.surfaces.models import Page
from gateway_apiserver.surfaces.validation import read_openai_query, unknown
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
from gateway_core.api.errors import Internal, NotFound, OutcomeUnknown, Unavailable
from gateway_core.api.ids import FILE_PREFIX
from gateway_core.api.resource import Object, ObjectRef
from gateway_core.files.files import (
    FileRecord,
    FileRecorder,
    read_file,
    render_file,
)
from gateway_core.files.quota import StorageQuota
from gateway_core.kube.errors import KubernetesError, WriteConflict, WriteOutcomeUnknown
from gateway_core.kube.lists import wrap_page
from gateway_core.storage.content import read_segments, stream_content
from gateway_core.storage.objects import ObjectMissing, ObjectStore
from gateway_web.responses import Response, to_json

PATH = "/v1/files"
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_DELETE_ATTEMPTS = 10

_log = structlog.get_logger(__name__)


class FileRoutes:
    """Create, list, retrieve, content, delete."""

    def __init__(
        self,
        finder: FileFinder,
        creation: FileCreation,
        recorder: FileRecorder,
        gate: StorageQuota,
        store: ObjectStore,
        sender: ContentSender,
        metrics: ApiMetrics,
    ) -> None:
        self._finder = finder
        self._creation = creation
        self._recorder = recorder
        self._gate = gate
        self._store = store
        self._sender = sender
        self._metrics = metrics

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        one, content = PATH + "/{file_id}", PATH + "/{file_id}/content"
        create = Access(Act.CREATE, creates=True, rate="storage")
        docs = Docs("listFiles", "Files of the account", Page[File], query=FileQuery)
        routes.append(CallRoute("GET", PATH, self.list, "files_list", Access(), docs))
        docs = Docs("createFile", "Store a file", File, form=FORM, also=(504,))
        routes.append(CallRoute("POST", PATH, self.create, "files_create", create, docs))
        docs = Docs("showFile", "A file without its bytes", File)
        routes.append(CallRoute("GET", one, self.show, "files_read", Access(), docs))
        docs = Docs("deleteFile", "Delete a file", DeletedFile, also=(504,))
        routes.append(
            CallRoute("DELETE", one, self.delete, "files_delete", Access(Act.CREATE), docs)
        )
        docs = Docs(
            "readFileContent",
            "A file's bytes",
            also=(416,),
            responses={
                "200": {"description": "All of them.", "content": _BYTES},
                "206": {"description": "The one range that was asked for.", "content": _BYTES},
                "304": {"description": "They are those of the ETag that was sent."},
            },
        )
        routes.append(CallRoute("GET", content, self.send_content, "files_content", Access(), docs))

    async def create(self, call: Call) -> Response:
        """Store a file of one multipart form."""
        made = await self._creation.create(call)
        self._finder.upsert(made)
        record = _read(made)
        self._metrics.count_bytes("files", "in", record.bytes)
        return to_json(render_file(record))

    async def list(self, call: Call) -> Response:
        """A page of the account's files."""
        query = read_openai_query(FileQuery, call.query)
        found, has_more = await self._finder.list_files(call.account, query)
        return to_json(wrap_page([render_file(record) for record in found], has_more))

    async def show(self, call: Call) -> Response:
        """One file without its bytes."""
        obj = await self._finder.find(call.account, call.wire_id)
        return to_json(render_file(_read(obj)))

    async def send_content(self, call: Call) -> None:
        """Send a file's bytes."""
        account, wire_id = call.account, call.wire_id
        obj = await self._finder.find(account, wire_id)
        try:
            content = self._open(_read(obj), read_segments(obj))
            await self._sender.send(call.scope, call.receive, call.send, content)
        except ObjectMissing as error:
            # deleted since, or lost
            await self._finder.find(account, wire_id)
            _log.error("a file's bytes are missing", file=obj["metadata"]["name"])
            raise Internal("The file's bytes are missing.") from error

    def _open(self, record: FileRecord, segments: Sequence[ObjectRef]) -> Content:
        """A File's bytes; its name is never reused, so it is also the version."""
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

    async def delete(self, call: Call) -> Response:
        """Delete a file."""
        account, wire_id = call.account, call.wire_id
        obj = await self._delete_object(account, wire_id)
        await self._gate.release(account, "files", obj["metadata"]["name"])
        return to_json({"id": wire_id, "object": FILE_PREFIX, "deleted": True})

    async def _delete_object(self, account: str, wire_id: str) -> Object:
        """Delete a file; one of concurrent deletes succeeds. NotFound, Unavailable."""
        sent: Object | None = None
        for _ in range(_DELETE_ATTEMPTS):
            try:
                obj = await self._finder.find(account, wire_id)
            except NotFound:
                if sent is None:
                    raise
                # deleted by the attempt that was not acknowledged
                await self._tell_gone(sent)
                return sent
            try:
                await self._recorder.delete(obj)
            except WriteConflict:
                continue
            except WriteOutcomeUnknown:
                sent = obj
                continue
            except KubernetesError as error:
                raise Unavailable("The file cannot be deleted now.", retry_after=1) from error
            return obj
        if sent is not None:
            raise OutcomeUnknown("The deletion was not acknowledged in time.")
        raise Unavailable("The file changes faster than it can be deleted.", retry_after=1)

    async def _tell_gone(self, obj: Object) -> None:
        """Announce the deletion, so that lists wait until their informer has seen it."""
        try:
            await self._recorder.note_gone(obj)
        except KubernetesError as error:
            name = obj["metadata"]["name"]
            _log.warning("a file's end could not be told", file=name, error=str(error))


def _read(obj: Object) -> FileRecord:
    record = read_file(obj)
    if record is None:
        raise unknown(FILE_PREFIX, obj["metadata"]["name"])
    return record
