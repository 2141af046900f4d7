"""`Fetcher` of what a test puts there; its rules of addresses are the adapter's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway_core.files.fetching import Fetched, FetchFailed


class FakeFetcher:
    """Pages by URL, bytes or why they cannot be fetched."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes | str] = {}
        self.fetched: list[str] = []
        self.holders: list[str] = []

    @asynccontextmanager
    async def open(self, url: str, account: str) -> AsyncIterator[Fetched]:
        self.fetched.append(url)
        self.holders.append(account)
        page = self.pages.get(url, "could not be reached")
        if isinstance(page, str):
            raise FetchFailed(page)
        yield Fetched(_give(page), len(page))

    async def close(self) -> None:
        """Nothing is held."""


async def _give(page: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(page), 65536):
        yield page[start : start + 65536]
