"""Bounds of concurrent downloads: in total, per link or file, per address or account."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway_core.api.errors import Unavailable


class DynamicLimiter:
    """`total` units, of which one holder alone may have `alone`.

    A holder may take more only while it holds less than `alone / (total - alone)` times what is
    free. So the more others hold, the less each may have, and there is always something free for a
    newcomer until very many hold their share.
    """

    def __init__(self, total: int, alone: int) -> None:
        self._total = total
        self._free = total
        self._alone = min(alone, total)
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """How much all of them hold."""
        return self._total - self._free

    def may_take(self, holder: str, size: int = 1) -> bool:
        """Whether the holder may have `size` more."""
        if size > self._free:
            return False
        # a Counter gives 0 for a holder that it does not know, and does not keep it
        wanted = self._held[holder] + size
        return wanted * (self._total - self._alone) <= self._alone * (self._free - size)

    def take(self, holder: str, size: int = 1) -> None:
        """Gives the holder `size` more; after `may_take`."""
        self._free -= size
        self._held[holder] += size

    def give_back(self, holder: str, size: int = 1) -> None:
        """Takes `size` back."""
        self._free += size
        self._held[holder] -= size
        if not self._held[holder]:
            del self._held[holder]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadBounds:
    """The bounds of one process."""

    downloads: int = 560
    per_address: int = 512
    per_link: int = 512


class Downloads:
    """The downloads of one process that are under way; `refused` counts those that had no place."""

    def __init__(self, bounds: DownloadBounds) -> None:
        self._addresses = DynamicLimiter(bounds.downloads, bounds.per_address)
        self._links = DynamicLimiter(bounds.downloads, bounds.per_link)
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
