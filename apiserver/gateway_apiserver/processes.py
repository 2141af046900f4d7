"""The API process, from its settings to the end of its drain."""

import asyncio
import gc
from socket import socket

from gateway_apiserver.app import build_readiness, create_app, create_health_app
from gateway_apiserver.compose import configure_logging, open_api
from gateway_apiserver.parts import ApiParts
from gateway_apiserver.settings import ApiSettings
from gateway_web.context import Drain
from gateway_web.server import listen_shared, serve, serve_health

_READY_SECONDS = 0.05
_OBJECTS_BEFORE_COLLECTION = 20_000


async def serve_api(settings: ApiSettings) -> None:
    """Serve the API until a signal.

    Raises:
        NoCluster, SecretsUnusable: as `open_api`.
    """
    configure_logging(settings.log_level, settings.log_format)
    drain = Drain()
    async with open_api(settings) as parts:
        app, health = create_app(parts, drain), create_health_app(parts, drain)
        _collect_rarely()
        listeners = await _listen_when_ready(settings, parts, drain)
        async with serve_health(health, settings.health_host, settings.health_port):
            await serve(
                app,
                settings.api_host,
                settings.api_port,
                drain,
                settings.linger_seconds,
                parts.connections,
                listeners,
            )


async def _listen_when_ready(
    settings: ApiSettings, parts: ApiParts, drain: Drain
) -> list[socket] | None:
    """Listen on a port that is shared with other processes; None where it is not.

    Until this process is ready, the others get all connections.
    """
    if not settings.reuse_port:
        return None
    is_ready = build_readiness(parts, drain)
    while not is_ready():  # noqa: ASYNC110 - of informers, which have no event for it
        await asyncio.sleep(_READY_SECONDS)
    return listen_shared(settings.api_host, settings.api_port)


def _collect_rarely() -> None:
    """Exempt what exists from garbage collection, and look for cycles less often.

    A request makes hundreds of objects and hardly a cycle: the default, a look at every 700 of
    them, takes a tenth of the CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, 10, 10)
