"""How many objects to ask for at a time, so that a page of any kind is bounded in bytes.

A page has a price of its own, so small objects are read many at a time: as many as the bytes of the
page before allow. Larger ones that come after them show as a page that is too long, which is given
up and asked for anew with fewer objects, down to a single one.
"""

from gateway_core.ports.records import FIRST_PAGE, PAGE

PAGE_BYTES = 4_000_000
"""Bytes that a page is to have."""
MOST_PAGE_BYTES = 2 * PAGE_BYTES
"""Bytes read of a page of several objects; a single one, which etcd bounds, is read whole."""
_SHRINK = 4


class PageTooLong(Exception):
    """A page has more bytes than it may have."""


class PageSizes:
    """What is known of the kinds of one client; of whole objects and of their metadata apart."""

    def __init__(self) -> None:
        self._learned: dict[tuple[str, bool], int] = {}

    def choose(self, plural: str, *, metadata_only: bool, limit: int | None = None) -> int:
        """Objects in the next page of a kind; at most `limit`."""
        learned = self._learned.get((plural, metadata_only), FIRST_PAGE)
        return learned if limit is None else min(limit, learned)

    def note(self, plural: str, objects: int, size: int, *, metadata_only: bool) -> None:
        """Learns of a page of `objects`, in `size` bytes."""
        if objects:
            fitting = PAGE_BYTES * objects // size
            self._learned[plural, metadata_only] = max(1, min(PAGE, fitting))

    def shrink(self, plural: str, wanted: int, *, metadata_only: bool) -> int:
        """A page of `wanted` objects was too long: objects in the one that is asked for instead."""
        fewer = self._learned[plural, metadata_only] = max(1, wanted // _SHRINK)
        return fewer
