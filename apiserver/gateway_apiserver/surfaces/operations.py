"""Operational routes of the public port, and public JSON.

Load balancers that can only probe the traffic port use the probes here; Kubernetes and Prometheus
use the health port (`server`).
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import orjson
from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute
from gateway_core.api.errors import Unavailable
from gateway_core.providers.catalog import Catalog
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.storage.limits import Downloads
from gateway_web.context import Header
from gateway_web.middleware.connections import name_client
from gateway_web.responses import JSON, Response, send_chunks, send_empty, send_head

PIECE_BYTES = 16 * 1024


class PublicSender:
    """Sends bodies in pieces, each as one of `downloads`.

    A slow reader then holds one piece in its transport, and the number of readers is bounded. Parts
    of a body that the caller keeps too cost nothing further.
    """

    def __init__(self, downloads: Downloads) -> None:
        self._downloads = downloads

    async def send(
        self, call: Call, body: Sequence[bytes], headers: Sequence[Header] = (JSON,)
    ) -> None:
        """Answer the call with the JSON `body`, given in parts. Raises Unavailable."""
        complete = [*headers, (b"content-length", b"%d" % sum(map(len, body)))]
        with self._downloads.take(name_client(call.scope), call.context.template or ""):
            if call.context.is_head:
                await send_empty(call.send, 200, complete)
                return
            await send_head(call.send, 200, complete)
            pieces = _cut(body)
            await send_chunks(call.receive, call.send, await anext(pieces), pieces)


async def _cut(body: Sequence[bytes]) -> AsyncIterator[bytes]:
    piece = b""
    for part in body:
        for start in range(0, len(part), PIECE_BYTES):
            added = part[start : start + PIECE_BYTES]
            if len(piece) + len(added) > PIECE_BYTES:
                yield piece
                piece = b""
            piece += added
    yield piece


_OK = Response(200, b'{"status":"ok"}', (JSON,))


def add_operational_routes(
    routes: list[BaseRoute],
    is_ready: Callable[[], bool],
    catalog: CatalogView,
    describe: Callable[[Catalog], dict[str, Any]],
    sender: PublicSender,
) -> None:
    """Add the routes; `describe` makes the document of a catalog."""
    known: tuple[Catalog, bytes] | None = None

    async def show_health(_: Call) -> Response:
        return _OK

    async def show_readiness(_: Call) -> Response:
        if not is_ready():
            raise Unavailable("The gateway is starting or leaving.", retry_after=1)
        return _OK

    async def show_document(call: Call) -> None:
        nonlocal known
        current = catalog.current
        if known is None or known[0] is not current:
            # building takes 30 ms, and needs no key to request
            known = current, orjson.dumps(describe(current))
        await sender.send(call, [known[1]])

    routes.append(CallRoute("GET", "/healthz", show_health, "operations_health"))
    routes.append(CallRoute("GET", "/readyz", show_readiness, "operations_health"))
    routes.append(CallRoute("GET", "/openapi.json", show_document, "operations_openapi"))
