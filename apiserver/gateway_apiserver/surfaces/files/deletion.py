"""Deletion of a File by a client (contract §3.5)."""

import structlog

from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_core.api.errors import NotFound, OutcomeUnknown, Unavailable
from gateway_core.api.resource import Object
from gateway_core.files.files import FileRecorder
from gateway_core.files.quota import StorageQuota
from gateway_core.kube.errors import KubernetesError, WriteConflict, WriteOutcomeUnknown

_ATTEMPTS = 10

_log = structlog.get_logger(__name__)


class FileDeletion:
    """Deletes Files, and releases their storage."""

    def __init__(self, finder: FileFinder, recorder: FileRecorder, quota: StorageQuota) -> None:
        self._finder = finder
        self._recorder = recorder
        self._quota = quota

    async def delete(self, account: str, wire_id: str) -> None:
        """Delete a file; one of concurrent deletes succeeds.

        Raises NotFound, Unavailable, OutcomeUnknown.
        """
        obj = await self._delete_object(account, wire_id)
        await self._quota.release(account, "files", obj["metadata"]["name"])

    async def _delete_object(self, account: str, wire_id: str) -> Object:
        sent: Object | None = None
        for _ in range(_ATTEMPTS):
            try:
                obj = await self._finder.find(account, wire_id)
            except NotFound:
                if sent is None:
                    raise
                # deleted by the attempt that was not acknowledged
                await self._announce(sent)
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

    async def _announce(self, obj: Object) -> None:
        """Announce the deletion, so that lists wait until their informer has seen it."""
        try:
            await self._recorder.note_gone(obj)
        except KubernetesError as error:
            name = obj["metadata"]["name"]
            _log.warning("a file's end could not be told", file=name, error=str(error))
