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
            if call.is_head:
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
