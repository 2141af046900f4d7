"""The routes that store bytes, put together of the app's parts: files, Uploads, temporary files.

They share what an account may store, and how many streams it may have.
"""

from functools import partial
from typing import TYPE_CHECKING

from gateway_apiserver.concurrency import StreamLimiter
from gateway_apiserver.failpoints import Failpoints
from gateway_apiserver.middleware.downloads import Downloads
from gateway_apiserver.middleware.metrics import ApiMetrics
from gateway_apiserver.surfaces.calls import Authorizer
from gateway_apiserver.surfaces.files.content import ContentSender
from gateway_apiserver.surfaces.files.creation import FileCreation
from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_apiserver.surfaces.files.routes import FileEndpoints
from gateway_apiserver.surfaces.temporary_files.creation import TemporaryCreation
from gateway_apiserver.surfaces.temporary_files.objects import TemporaryFiles
from gateway_apiserver.surfaces.temporary_files.routes import TemporaryRoutes
from gateway_apiserver.surfaces.uploads.creation import UploadCreation
from gateway_apiserver.surfaces.uploads.routes import UploadRoutes
from gateway_apiserver.surfaces.uploads.service import UploadService
from gateway_core.api.ids import IdMint
from gateway_core.files.addresses import TemporaryAddresses
from gateway_core.files.files import FileRecorder
from gateway_core.files.parts import UploadParts
from gateway_core.files.quota import StorageGate
from gateway_core.files.quota_counters import Pool
from gateway_core.files.uploads import UploadOutcomes

if TYPE_CHECKING:
    from gateway_apiserver.app import ApiParts


class StoringRoutes:
    """Builds each of them, for one app."""

    def __init__(
        self,
        parts: "ApiParts",
        door: Authorizer,
        mint: IdMint,
        metrics: ApiMetrics,
        failpoints: Failpoints,
        downloads: Downloads,
    ) -> None:
        self._parts = parts
        self._door = door
        self._mint = mint
        self._metrics = metrics
        self._failpoints = failpoints
        self._downloads = downloads
        self._places = StreamLimiter()
        self._recorder = FileRecorder(parts.records, parts.storage)
        most: dict[Pool, int] = {
            "files": parts.settings.files_per_account,
            "temporary": parts.settings.temporary_files_per_account,
        }
        self._gate = StorageGate(parts.records, parts.storage, most)

    def build_files(self, found: FileFinder) -> FileEndpoints:
        """`/v1/files`."""
        store, gate, recorder = self._parts.store, self._gate, self._recorder
        return FileEndpoints(
            self._door,
            found,
            FileCreation(store, gate, recorder, self._mint, self._failpoints, self._places),
            recorder,
            gate,
            ContentSender(
                store, partial(self._metrics.count_bytes, "files", "out"), self._downloads
            ),
            self._metrics,
        )

    def build_uploads(self) -> UploadRoutes:
        """`/v1/uploads`."""
        parts, mint, failpoints = self._parts, self._mint, self._failpoints
        outcomes = UploadOutcomes(parts.records, self._gate, self._recorder, failpoints)
        upload_parts = UploadParts(parts.store, parts.parts, mint, failpoints)
        return UploadRoutes(
            self._door,
            UploadCreation(parts.records, self._gate, outcomes, mint),
            UploadService(parts.records, outcomes, upload_parts, mint, clock=parts.clock),
            upload_parts,
            partial(self._metrics.count_bytes, "uploads", "in"),
            self._places,
            clock=parts.clock,
        )

    def build_temporary(self) -> TemporaryRoutes:
        """`/api/v1/files`."""
        parts, settings = self._parts, self._parts.settings
        addresses = TemporaryAddresses(parts.sealer)
        files = TemporaryFiles(
            parts.records,
            parts.store,
            self._gate,
            self._recorder,
            addresses,
            self._mint,
            media_url=settings.media_url,
            limit=settings.temporary_storage_bytes,
        )
        creation = TemporaryCreation(files, parts.store, parts.fetcher, self._places)
        return TemporaryRoutes(
            self._door, creation, files, parts.store, addresses, media_url=settings.media_url
        )
