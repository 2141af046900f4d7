"""Bounds of concurrent downloads: in total, per link or file, per address or account."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway_core.api.errors import Unavailable
from gateway_core.concurrency import FairSemaphore


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadBounds:
    """The bounds of one process."""

    downloads: int = 560
    per_address: int = 512
    per_link: int = 512


class Downloads:
    """Running downloads of one process; `refused` counts downloads beyond the bounds."""

    def __init__(self, bounds: DownloadBounds) -> None:
        self._addresses = FairSemaphore(bounds.downloads, alone=bounds.per_address)
        self._links = FairSemaphore(bounds.downloads, alone=bounds.per_link)
        self.refused = 0

    def __len__(self) -> int:
        return self._links.held

    @contextmanager
    def take(self, address: str, link: str) -> Iterator[None]:
        """A place for one download. Unavailable where there is none."""
        if not (self._addresses.has_room(address) and self._links.has_room(link)):
            self.refused += 1
            raise Unavailable("Too many downloads are under way, of this file or to this client.")
        self._addresses.acquire_nowait(address)
        self._links.acquire_nowait(link)
        try:
            yield
        finally:
            self._addresses.release(address)
            self._links.release(link)
