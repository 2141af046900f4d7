"""The endpoints of `/v1/files` (contract §3). None is counted in the rate (§12.1)."""

import structlog

from gateway_apiserver.middleware.metrics import ApiMetrics
from gateway_apiserver.paging import wrap_page
from gateway_apiserver.surfaces.bodies import check_word
from gateway_apiserver.surfaces.calls import Authorizer, Call, Endpoint, Endpoints
from gateway_apiserver.surfaces.files.content import Content, ContentSender
from gateway_apiserver.surfaces.files.creation import FileCreation
from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_apiserver.surfaces.ids import unknown
from gateway_apiserver.surfaces.queries import read_list_query, read_query
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import Internal, NotFound, OutcomeUnknown, Unavailable
from gateway_core.api.ids import FILE_PREFIX
from gateway_core.files.files import (
    SHOWN_PURPOSES,
    FileRecord,
    FileRecorder,
    read_file,
    render_file,
)
from gateway_core.files.quota import StorageGate
from gateway_core.kube.records import (
    Object,
    Outdated,
    RecordError,
    RecordOutcomeUnknown,
)
from gateway_core.storage.content import read_segments
from gateway_core.storage.objects import ObjectMissing

MOST_LISTED = 10_000
_DELETE_ATTEMPTS = 10

_log = structlog.get_logger(__name__)


class FileEndpoints:
    """Create, list, retrieve, content, delete."""

    def __init__(
        self,
        door: Authorizer,
        finder: FileFinder,
        creation: FileCreation,
        recorder: FileRecorder,
        gate: StorageGate,
        sender: ContentSender,
        metrics: ApiMetrics,
    ) -> None:
        self._door = door
        self._finder = finder
        self._creation = creation
        self._recorder = recorder
        self._gate = gate
        self._sender = sender
        self._metrics = metrics

    @property
    def endpoints(self) -> Endpoints:
        """By path and method."""
        return {
            "files": {
                "GET": Endpoint("files_list", self._list),
                "POST": Endpoint("files_create", self._create),
            },
            "files/{file_id}": {
                "GET": Endpoint("files_read", self._show),
                "DELETE": Endpoint("files_delete", self._delete),
            },
            "files/{file_id}/content": {"GET": Endpoint("files_content", self._send)},
        }

    async def _create(self, call: Call) -> None:
        caller = await self._door.admit(call, Act.CREATE, creates=True, rate="storage")
        made = await self._creation.create(call, caller)
        self._finder.offer(made)
        record = _read(made)
        self._metrics.count_bytes("files", "in", record.bytes)
        await call.reply(render_file(record))

    async def _list(self, call: Call) -> None:
        caller = await self._door.admit(call, Act.READ)
        given = read_query(call.query)
        query = read_list_query(given, most=MOST_LISTED, default=MOST_LISTED)
        purpose = given.get("purpose")
        if purpose is not None:
            check_word(purpose, "purpose", SHOWN_PURPOSES)
        found, has_more = await self._finder.list_files(caller.account.name, query, purpose)
        await call.reply(wrap_page([render_file(record) for record in found], has_more))

    async def _show(self, call: Call) -> None:
        caller = await self._door.admit(call, Act.READ)
        obj = await self._finder.find(caller.account.name, call.ids[0])
        await call.reply(render_file(_read(obj)))

    async def _send(self, call: Call) -> None:
        caller = await self._door.admit(call, Act.READ)
        account, wire_id = caller.account.name, call.ids[0]
        obj = await self._finder.find(account, wire_id)
        try:
            await self._sender.send(call, Content(_read(obj), read_segments(obj)))
        except ObjectMissing as error:
            # deleted since it was found, or lost
            await self._finder.find(account, wire_id)
            _log.error("a file's bytes are missing", file=obj["metadata"]["name"])
            raise Internal("The file's bytes are missing.") from error

    async def _delete(self, call: Call) -> None:
        caller = await self._door.admit(call, Act.CREATE)
        account, wire_id = caller.account.name, call.ids[0]
        obj = await self._delete_object(account, wire_id)
        await self._gate.release(account, "files", obj["metadata"]["name"])
        await call.reply({"id": wire_id, "object": FILE_PREFIX, "deleted": True})

    async def _delete_object(self, account: str, wire_id: str) -> Object:
        """Of several deletes one succeeds; the others do not find it. NotFound, Unavailable."""
        sent: Object | None = None
        for _ in range(_DELETE_ATTEMPTS):
            try:
                obj = await self._finder.find(account, wire_id)
            except NotFound:
                if sent is None:
                    raise
                # by the call that was not acknowledged
                await self._tell_gone(sent)
                return sent
            try:
                await self._recorder.delete(obj)
            except Outdated:
                continue
            except RecordOutcomeUnknown:
                sent = obj
                continue
            except RecordError as error:
                raise Unavailable("The file cannot be deleted now.", retry_after=1) from error
            return obj
        if sent is not None:
            raise OutcomeUnknown("The deletion was not acknowledged in time.")
        raise Unavailable("The file changes faster than it can be deleted.", retry_after=1)

    async def _tell_gone(self, obj: Object) -> None:
        """Has lists wait until they have seen that it is gone."""
        try:
            await self._recorder.note_gone(obj)
        except RecordError as error:
            name = obj["metadata"]["name"]
            _log.warning("a file's end could not be told", file=name, error=str(error))


def _read(obj: Object) -> FileRecord:
    record = read_file(obj)
    if record is None:
        raise unknown(FILE_PREFIX, obj["metadata"]["name"])
    return record
