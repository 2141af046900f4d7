"""Files, Uploads and temporary files as one part of the application."""

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.routing import BaseRoute

from gateway_apiserver.content import ContentSender
from gateway_apiserver.failpoints import Failpoints
from gateway_apiserver.metrics import ApiMetrics
from gateway_apiserver.parts import ApiParts
from gateway_apiserver.surfaces.files.creation import FileCreation
from gateway_apiserver.surfaces.files.deletion import FileDeletion
from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_apiserver.surfaces.files.streams import FileStreams
from gateway_apiserver.surfaces.files.writing import FileWriter
from gateway_apiserver.surfaces.temporary_files.creation import TemporaryCreation
from gateway_apiserver.surfaces.temporary_files.objects import TemporaryFiles
from gateway_apiserver.surfaces.temporary_files.puts import FilePuts
from gateway_apiserver.surfaces.uploads.service import UploadService
from gateway_apiserver.surfaces.uploads.streams import PartUploads
from gateway_core.accounts.records import AccountRecord
from gateway_core.api.ids import IdMint
from gateway_core.files.addresses import TemporaryAddresses
from gateway_core.files.files import FileRecorder
from gateway_core.files.parts import UploadParts
from gateway_core.files.quota import StorageQuota
from gateway_core.files.quota_counters import Pool
from gateway_core.files.uploads import UploadOutcomes
from gateway_core.kube.repository import Repository
from gateway_core.storage.limits import Downloads, StreamLimiter


def add_storage(
    routes: list[BaseRoute],
    parts: ApiParts,
    repository: Repository,
    finder: FileFinder,
    mint: IdMint,
    metrics: ApiMetrics,
    failpoints: Failpoints,
    downloads: Downloads,
    check_same: Callable[[AccountRecord], None],
) -> dict[type, Any]:
    """Add files, Uploads and temporary files, which share an account's storage and streams.

    Return the services of their routers.
    """
    settings, kube, store = parts.settings, parts.kube, parts.store
    streams = StreamLimiter()
    recorder = FileRecorder(kube, parts.storage)
    most: dict[Pool, int] = {
        "files": settings.files_per_account,
        "temporary": settings.temporary_files_per_account,
    }
    quota = StorageQuota(kube, parts.storage, most)
    FileStreams(
        finder,
        FileCreation(FileWriter(store, quota, recorder, streams, check_same, failpoints), mint),
        store,
        ContentSender(downloads, partial(metrics.count_bytes, "files", "out")),
        metrics,
    ).add_to(routes)
    outcomes = UploadOutcomes(kube, quota, recorder, failpoints)
    upload_parts = UploadParts(store, parts.parts, mint, failpoints)
    upload_service = UploadService(
        kube, repository, quota, outcomes, upload_parts, mint, clock=parts.clock
    )
    PartUploads(
        upload_service,
        upload_parts,
        partial(metrics.count_bytes, "uploads", "in"),
        streams,
        clock=parts.clock,
    ).add_to(routes)
    addresses = TemporaryAddresses(parts.sealer)
    writer = FileWriter(store, quota, recorder, streams, check_same)
    temporary = TemporaryFiles(
        repository,
        writer,
        addresses,
        mint,
        media_url=settings.media_url,
        limit=settings.temporary_storage_bytes,
    )
    TemporaryCreation(temporary, writer, parts.fetcher).add_to(routes)
    return {
        FileFinder: finder,
        FileDeletion: FileDeletion(finder, recorder, quota),
        UploadService: upload_service,
        FilePuts: FilePuts(temporary, store, addresses, media_url=settings.media_url),
    }
