"""Copies a finished job's outputs into the gateway's own store and signs their addresses."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gateway_core.contract.media import LIFETIME_SECONDS, MediaItem, MediaSigner
from gateway_core.ports.objects import ObjectStore, ObjectTooLarge
from gateway_core.ports.upstream import OutputRejected, Upstream

MAX_COPIES = 16


class Outputs:
    """Where outputs go. At most `MAX_COPIES` are under way at a time."""

    def __init__(self, store: ObjectStore, signer: MediaSigner, media_url: str) -> None:
        self._store = store
        self._signer = signer
        self._media_url = media_url.rstrip("/")
        self._slots = asyncio.Semaphore(MAX_COPIES)

    async def copy(
        self, upstream: Upstream, task_name: str, urls: Sequence[str], now: datetime
    ) -> list[dict[str, Any]]:
        """Stores every output; the task's `status.result.videos`.

        Keys follow from the task, so that copying again after a crash replaces what was there.
        Raises what `Upstream.fetch` and the store raise.
        """
        videos = []
        for index, url in enumerate(urls):
            item = MediaItem(task_name, index)
            async with self._slots, upstream.fetch(url) as download:
                try:
                    stored = await self._store.put_stream(
                        item.key, download.chunks, max_bytes=upstream.max_output_bytes
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
