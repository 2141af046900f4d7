"""Content at addresses that prompts name, fetched where a provider does not do so (§11.6)."""

import asyncio

from gateway_apiserver.surfaces.large_bodies import LargeBodies
from gateway_apiserver.surfaces.temporary_files.streaming import find_media_type
from gateway_core.api.errors import InvalidRequest
from gateway_core.fair_semaphore import HeldUnits
from gateway_core.files.fetching import Fetcher, FetchFailed
from gateway_core.llm.formats.calls import Format, LlmCall
from gateway_core.llm.formats.links import Link, find_links, inline_links

MOST_LINKS = 16
MOST_BYTES = 16 * 1024 * 1024
"""Bytes of all content that is fetched for a call, as of files that it names."""
MOST_UNITS = 64
UNIT_BYTES = 1024 * 1024
"""MiB of fetched content that calls hold at once, half of them for one account."""
FETCH_SECONDS = 15.0
_HEAD_BYTES = 4096


class LinkedMedia:
    """Fetches what calls name, under the address policy of `fetcher`."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._memory = LargeBodies(MOST_UNITS, unit_bytes=UNIT_BYTES)

    async def inline(self, call: LlmCall, upstream: Format, account: str, held: HeldUnits) -> bool:
        """Put into the call's body what a provider of this format is to be sent as bytes.

        Returns whether there was any; its memory is then among `held`. Raises

            InvalidRequest: it cannot be fetched, is too much, or no picture where one has to be.
            Unavailable: too much is being fetched.
        """
        links = find_links(call, upstream)
        if not links:
            return False
        if len(links) > MOST_LINKS:
            raise _refuse(links[MOST_LINKS], f"is one of more than {MOST_LINKS} addresses")
        contents: dict[Link, tuple[str, bytes]] = {}
        pages: dict[str, bytes] = {}
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                for link in links:
                    if link.url not in pages:
                        left = MOST_BYTES - sum(map(len, pages.values()))
                        pages[link.url] = await self._fetch(link, account, held, left)
                    contents[link] = _find_type(link, pages[link.url]), pages[link.url]
        except TimeoutError as error:
            raise _refuse(links[len(contents)], "was not fetched in time") from error
        call.body = await asyncio.to_thread(inline_links, call.body, contents)
        return True

    async def _fetch(self, link: Link, account: str, held: HeldUnits, most: int) -> bytes:
        content = bytearray()
        try:
            async with self._fetcher.open(link.url, account) as fetched:
                room = fetched.length or 0
                if room <= most:
                    await self._take(account, held, room)
                    async for chunk in fetched.chunks:
                        content += chunk
                        if len(content) > most:
                            break
                        if len(content) > room:
                            # its length is not declared
                            room += UNIT_BYTES
                            await self._take(account, held, UNIT_BYTES)
                    else:
                        return bytes(content)
        except FetchFailed as error:
            raise _refuse(link, str(error)) from error
        raise _refuse(link, f"has more than {MOST_BYTES} bytes, with the other addresses")

    async def _take(self, account: str, held: HeldUnits, size: int) -> None:
        # in base64
        await self._memory.take_slot(account, held, size * 4 // 3)


def _find_type(link: Link, data: bytes) -> str:
    name = link.url.partition("?")[0].rpartition("/")[2]
    media_type = find_media_type(data[:_HEAD_BYTES], name)
    if link.is_image and not media_type.startswith("image/"):
        raise _refuse(link, "leads to no picture")
    return media_type


def _refuse(link: Link, problem: str) -> InvalidRequest:
    text = f"{link.place} {problem}; this model's provider fetches no addresses itself."
    return InvalidRequest(text, param=link.param)
