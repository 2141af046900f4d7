"""Choice of the object store by a deployment's settings."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from gateway_core.api.resource import (
    BATCHES_FOLDER,
    FILES_FOLDER,
    FOLDER,
    TEMPORARY_FOLDER,
    UPLOADS_FOLDER,
)
from gateway_core.concurrency import Supervisor
from gateway_core.storage.directory import DirectoryStore
from gateway_core.storage.objects import ObjectStore, StoreSettings

SWEEP_SECONDS = 6 * 3600.0
SWEPT = (FOLDER, FILES_FOLDER, UPLOADS_FOLDER, BATCHES_FOLDER, TEMPORARY_FOLDER)
"""Folders with multipart uploads."""


@asynccontextmanager
async def open_store(
    settings: StoreSettings, supervisor: Supervisor | None = None
) -> AsyncIterator[ObjectStore]:
    """Open the store; `supervisor` restarts the removal of leftovers after a failure.

    An unreachable bucket does not prevent the start: calls raise StoreUnavailable until it is back,
    and the log reports it at once.
    """
    if settings.store == "directory":
        assert settings.store_dir is not None
        directory = DirectoryStore(settings.store_dir)
        try:
            yield directory
        finally:
            directory.close()
        return
    # imported late: boto3 costs a process about 0.3 s and 30 MB
    from gateway_core.storage.s3.client import build_client
    from gateway_core.storage.s3.store import S3Store

    client = build_client(
        settings.store_endpoint or None, settings.store_region or None, settings.store_addressing
    )
    bucket = S3Store(client, settings.store_bucket, settings.store_prefix)
    keep = (supervisor or Supervisor()).keep
    sweep = asyncio.create_task(keep("leftovers", partial(_sweep, bucket.remove_leftovers)))
    try:
        yield bucket
    finally:
        sweep.cancel()
        await asyncio.gather(sweep, return_exceptions=True)
        await asyncio.to_thread(bucket.close)


async def _sweep(remove_leftovers: Callable[[str], Awaitable[None]]) -> None:
    """Remove leftovers of the gateway's folders; the bucket may have other users."""
    while True:
        for folder in SWEPT:
            await remove_leftovers(folder)
        await asyncio.sleep(SWEEP_SECONDS)
