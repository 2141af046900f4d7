"""The API process and the media host, from their settings to the end of their drain."""

import asyncio
import gc
import socket
from functools import partial

from gateway_apiserver.app import build_readiness, create_app, create_health_app
from gateway_apiserver.compose import configure_logging, open_api, open_media
from gateway_apiserver.media import create_media_app, create_media_health_app
from gateway_apiserver.settings import ApiSettings, MediaSettings
from gateway_apiserver.workers.link import METRICS, NO, READY, YES, Answers, answer_parent
from gateway_apiserver.workers.listeners import listen_shared
from gateway_web.context import Drain
from gateway_web.server import expose, serve, serve_health

_READY_SECONDS = 0.05
_OBJECTS_BEFORE_COLLECTION = 20_000


async def serve_api(settings: ApiSettings, link: socket.socket | None = None) -> None:
    """Serve the API until a signal; as a worker if there is a `link` to its parent.

    Raises:
        NoCluster, SecretsUnusable: as `open_api`.
    """
    configure_logging(settings.log_level, settings.log_format)
    drain = Drain()
    async with open_api(settings) as parts:
        app, is_ready = create_app(parts, drain), build_readiness(parts, drain)
        _collect_rarely()
        serve_clients = partial(
            serve,
            app,
            settings.api_host,
            settings.api_port,
            drain,
            settings.linger_seconds,
            parts.connections,
        )
        if link is None:
            health = create_health_app(parts, drain)
            async with serve_health(health, settings.health_host, settings.health_port):
                await serve_clients()
            return
        listeners: list[socket.socket] = []

        async def tell_ready() -> bytes:
            return YES if listeners and is_ready() else NO

        answers: Answers = {READY: tell_ready, METRICS: partial(expose, parts.registry)}
        async with answer_parent(link, answers):
            # until then, other workers get all connections
            while not is_ready():  # noqa: ASYNC110 - of informers, which have no event for it
                await asyncio.sleep(_READY_SECONDS)
            listeners += listen_shared(settings.api_host, settings.api_port)
            await serve_clients(listeners)


def _collect_rarely() -> None:
    """Exempt what exists from garbage collection, and look for cycles less often.

    A request makes hundreds of objects and hardly a cycle: the default, a look at every 700 of
    them, takes a tenth of the CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, 10, 10)


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
