"""JSON that grows with the catalog and that anybody may ask for without a key."""

from collections.abc import AsyncIterator, Sequence

from gateway_apiserver.context import Header
from gateway_apiserver.middleware.clients import name_client
from gateway_apiserver.middleware.downloads import Downloads
from gateway_apiserver.responses import JSON, send_chunks, send_empty, send_head
from gateway_apiserver.routing import Call

PIECE_BYTES = 16 * 1024


class PublicSender:
    """Sends bodies in pieces, each as one of `downloads`.

    A slow reader then holds one piece in its transport, and the number of readers is bounded.
    """

    def __init__(self, downloads: Downloads) -> None:
        self._downloads = downloads

    async def send(self, call: Call, body: bytes, headers: Sequence[Header] = (JSON,)) -> None:
        """Answer the call with the JSON `body`. Raises Unavailable."""
        complete = [*headers, (b"content-length", b"%d" % len(body))]
        with self._downloads.take(name_client(call.scope), call.context.template or ""):
            if call.is_head:
                await send_empty(call.send, 200, complete)
                return
            await send_head(call.send, 200, complete)
            pieces = _cut(body)
            await send_chunks(call.receive, call.send, await anext(pieces), pieces)


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
