"""Operational routes of the public port, and public JSON.

Load balancers that can only probe the traffic port use the probes here; Kubernetes and Prometheus
use the health port (`server`).
"""

import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import sha256
from importlib.resources import files

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.routing import BaseRoute

from gateway_apiserver.documents import ApiDocument
from gateway_apiserver.endpoints import Call, CallRoute
from gateway_core.api.errors import Unavailable
from gateway_core.storage.limits import Downloads
from gateway_web.context import Header
from gateway_web.http1.connections import name_client
from gateway_web.responses import JSON, NO_SNIFF, Response, send_chunks, send_empty, send_head

PIECE_BYTES = 16 * 1024
DOCUMENT_PATH = "/openapi.json"
_DOCS = "/docs"
_SWAGGER = files("fastapi_swagger.resources")
_SWAGGER_FILES = {
    "swagger-ui-bundle.js": b"text/javascript; charset=utf-8",
    "swagger-ui.css": b"text/css; charset=utf-8",
}


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


def list_operational_routes(
    is_ready: Callable[[], bool], document: ApiDocument, sender: PublicSender
) -> list[BaseRoute]:
    """Return the routes of the probes and the OpenAPI document."""

    async def show_health(_: Call) -> Response:
        return _OK

    async def show_readiness(_: Call) -> Response:
        if not is_ready():
            raise Unavailable("The gateway is starting or leaving.", retry_after=1)
        return _OK

    async def show_document(call: Call) -> None:
        await sender.send(call, [document.read()])

    return [
        CallRoute("GET", "/healthz", show_health, "operations_health"),
        CallRoute("GET", "/readyz", show_readiness, "operations_health"),
        CallRoute("GET", DOCUMENT_PATH, show_document, "operations_openapi"),
    ]


def list_document_pages(sender: PublicSender) -> list[BaseRoute]:
    """Return the page `/docs`, on which operations can be read and tried, and what it loads."""
    page = get_swagger_ui_html(
        openapi_url=DOCUMENT_PATH,
        title="Model Gateway",
        swagger_js_url=f"{_DOCS}/swagger-ui-bundle.js",
        swagger_css_url=f"{_DOCS}/swagger-ui.css",
        swagger_favicon_url="data:,",
    ).body
    script = re.search(rb"<script>(.*?)</script>", bytes(page), re.DOTALL)
    assert script is not None
    digest = b64encode(sha256(script[1]).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'"
        " 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none';"
        " frame-ancestors 'none'; form-action 'none'"
    )
    shown = {
        _DOCS: (bytes(page), b"text/html; charset=utf-8"),
        **{
            f"{_DOCS}/{name}": (_SWAGGER.joinpath(name).read_bytes(), media_type)
            for name, media_type in _SWAGGER_FILES.items()
        },
    }

    async def show(call: Call) -> None:
        body, media_type = shown[call.scope["path"]]
        headers = [
            (b"content-type", media_type),
            (b"content-security-policy", policy.encode()),
            NO_SNIFF,
        ]
        await sender.send(call, [body], headers)

    return [CallRoute("GET", path, show, "operations_docs") for path in shown]
