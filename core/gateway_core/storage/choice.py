"""Opens the store that a deployment has chosen. Used by the processes' `compose` modules."""

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
"""Where objects go up in parts."""


@asynccontextmanager
async def open_store(
    settings: StoreSettings, supervisor: Supervisor | None = None
) -> AsyncIterator[ObjectStore]:
    """The store, closed at the end; `supervisor` keeps the removal of its leftovers going.

    A bucket that cannot be reached or used does not keep a process from starting: what needs it
    says so, and works as soon as it is back. The log tells at once.
    """
    if settings.store == "directory":
        assert settings.store_dir is not None
        directory = DirectoryStore(settings.store_dir)
        try:
            yield directory
        finally:
            directory.close()
        return
    # only here: boto3 costs a process about 0.3 s and 30 MB
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
    """Now and again; the bucket may be others' as well."""
    while True:
        for folder in SWEPT:
            await remove_leftovers(folder)
        await asyncio.sleep(SWEEP_SECONDS)
