"""Copies a finished job's outputs into the gateway's own store and signs their URLs."""

import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from gateway_core.api.upload import LIFETIME_SECONDS
from gateway_core.concurrency import FairSemaphore
from gateway_core.files.addresses import MediaItem, MediaSigner
from gateway_core.providers.upstream import OutputRejected, Upstream, UpstreamUnclear
from gateway_core.storage.objects import ObjectStore, ObjectTooLarge

PLACES = 32
"""Concurrent copies, as many as a bucket absorbs; at most half of them of one provider."""

GRACE_SECONDS = 30.0
LEAST_RATE = 16 * 1024
"""Bytes a second on average after the grace time; a slower download is given up."""


class Outputs:
    """Copies outputs. Concurrent copies are bounded, and shared fairly by providers."""

    def __init__(self, store: ObjectStore, signer: MediaSigner, media_url: str) -> None:
        self._store = store
        self._signer = signer
        self._media_url = media_url.rstrip("/")
        self.places = FairSemaphore(PLACES)

    async def copy(
        self, upstream: Upstream, task_uid: str, urls: Sequence[str], now: datetime
    ) -> list[dict[str, Any]]:
        """Store every output; the task's `status.result.videos`.

        Keys follow from the task, so a copy that is repeated after a crash replaces the first one.
        Raises what `Upstream.fetch` and the store raise.
        """
        videos = []
        for index, url in enumerate(urls):
            item = MediaItem(task_uid, index)
            async with self.places.take(upstream), upstream.fetch(url) as download:
                try:
                    stored = await self._store.put_stream(
                        item.key, _check_pace(download.chunks), max_bytes=upstream.max_output_bytes
                    )
                except ObjectTooLarge:
                    raise OutputRejected("The output is larger than allowed.") from None
                content_type = download.content_type
            path = self._signer.sign(item, content_type, int(now.timestamp()) + LIFETIME_SECONDS)
            videos.append(
                {
                    "url": self._media_url + path,
                    "key": stored.key,
                    "bytes": stored.bytes,
                    "sha256": stored.sha256,
                    "contentType": content_type,
                }
            )
        return videos


async def _check_pace(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks as they come. UpstreamUnclear once they come too slowly."""
    begin, total = time.monotonic(), 0
    async for chunk in chunks:
        total += len(chunk)
        elapsed = time.monotonic() - begin
        if elapsed > GRACE_SECONDS and total < elapsed * LEAST_RATE:
            raise UpstreamUnclear("The output came too slowly.")
        yield chunk
