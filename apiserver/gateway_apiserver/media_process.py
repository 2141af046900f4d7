"""The media host's process and its composition root, from its settings to the end of its drain.

It imports nothing of the API process: its pod has a quarter of the memory.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from gateway_apiserver.media import MediaParts, create_media_app, create_media_health_app
from gateway_apiserver.settings import MediaSettings
from gateway_core.concurrency import Supervisor
from gateway_core.files.addresses import MediaSigner, Sealer, TemporaryAddresses
from gateway_core.kube.secrets import load_key
from gateway_core.observability.logs import configure_logging
from gateway_core.observability.metrics import ProcessMetrics
from gateway_core.storage.choice import open_store
from gateway_web.context import Drain
from gateway_web.http1.connections import ConnectionTable
from gateway_web.middleware.observers import open_access_log
from gateway_web.server import serve, serve_health


async def serve_media(settings: MediaSettings) -> None:
    """Serve the media host until a signal. SecretsUnusable."""
    configure_logging(settings.log_level, settings.log_format)
    drain = Drain()
    async with open_media(settings) as parts:
        app = create_media_app(parts, drain=drain)
        health = create_media_health_app(parts, drain)
        async with serve_health(health, settings.health_host, settings.health_port):
            await serve(
                app,
                settings.media_host,
                settings.media_port,
                drain,
                settings.linger_seconds,
                parts.connections,
            )


@asynccontextmanager
async def open_media(settings: MediaSettings) -> AsyncIterator[MediaParts]:
    """Open the media host's parts. SecretsUnusable."""
    key = load_key(settings.secrets_dir, "media-key")
    registry = CollectorRegistry()
    process = ProcessMetrics(registry, "media")
    supervisor = Supervisor(process.count_failure)
    supervisor.watch_event_loop()
    watching = asyncio.create_task(supervisor.keep("event_loop_lag", process.watch_loop))
    try:
        async with open_store(settings, supervisor) as store:
            with open_access_log(settings) as access:
                yield MediaParts(
                    store,
                    MediaSigner(key),
                    TemporaryAddresses(Sealer(key)),
                    access,
                    ConnectionTable(settings.connection_bounds),
                    settings.download_bounds,
                    registry if settings.metrics_enabled else None,
                )
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
