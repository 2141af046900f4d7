"""Bounds of downloads under way: in total, per link (or file), and per address (or account).

Each takes at most 256 KiB: a chunk of 80 KiB (`ports.objects`), the kernel's send buffer
(`protocol`), and the state of request and connection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway_apiserver.connections.shares import DynamicShares
from gateway_core.contract.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadBounds:
    """The bounds of one process."""

    downloads: int = 560
    per_address: int = 512
    per_link: int = 512


class Downloads:
    """The downloads of one process that are under way; `refused` counts those that had no place."""

    def __init__(self, bounds: DownloadBounds) -> None:
        self._addresses = DynamicShares(bounds.downloads, bounds.per_address)
        self._links = DynamicShares(bounds.downloads, bounds.per_link)
        self.refused = 0

    def __len__(self) -> int:
        return self._links.held

    @contextmanager
    def take(self, address: str, link: str) -> Iterator[None]:
        """A place for one download. Unavailable where there is none."""
        if not (self._addresses.may_take(address) and self._links.may_take(link)):
            self.refused += 1
            raise Unavailable("Too many downloads are under way, of this file or to this client.")
        self._addresses.take(address)
        self._links.take(link)
        try:
            yield
        finally:
            self._addresses.give_back(address)
            self._links.give_back(link)
