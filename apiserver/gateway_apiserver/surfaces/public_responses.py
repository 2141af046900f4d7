"""JSON that grows with the catalog and that anybody may ask for without a key."""

from collections.abc import AsyncIterator, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway_apiserver.middleware.clients import name_client
from gateway_apiserver.middleware.downloads import Downloads
from gateway_apiserver.responses import send_chunks, send_head

PIECE_BYTES = 16 * 1024


class PublicResponse(Response):
    """A JSON body sent in pieces, as one of `downloads` of the link `link`.

    So a slow reader holds a piece in its transport, and there are not too many of them.
    """

    def __init__(
        self,
        body: bytes,
        downloads: Downloads,
        link: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(body, media_type="application/json", headers=headers)
        self._downloads = downloads
        self._link = link

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it. Unavailable."""
        with self._downloads.take(name_client(scope), self._link):
            await send_head(send, self.status_code, self.raw_headers)
            pieces = _cut(bytes(self.body))
            await send_chunks(receive, send, await anext(pieces), pieces)


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
