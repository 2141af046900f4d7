"""How many objects to ask for at a time, by the bytes of those that were read before.

A page has a price of its own, so small objects are read many at a time. Large ones that come after
them show as a page that is too long, which is given up and asked for anew in the smallest size.
"""

from gateway_core.ports.records import PAGE, choose_page

PAGE_BYTES = 10_000_000
"""What a page is to have at most."""
MOST_PAGE_BYTES = 2 * PAGE_BYTES
"""What is read of a page of more objects than the fewest."""


class PageTooLong(Exception):
    """A page has more bytes than it may have."""


class PageSizes:
    """What is known of the kinds of one client."""

    def __init__(self) -> None:
        self._learned: dict[str, int] = {}

    def choose(self, plural: str, *, metadata_only: bool) -> int:
        """Objects in the next page of a kind."""
        fewest = choose_page(plural, metadata_only=metadata_only)
        return fewest if metadata_only else self._learned.get(plural, fewest)

    def note(self, plural: str, objects: int, size: int) -> None:
        """Learns of a page of `objects` whole ones, in `size` bytes."""
        fewest = choose_page(plural, metadata_only=False)
        if objects:
            self._learned[plural] = max(fewest, min(PAGE, PAGE_BYTES * objects // size))

    def shrink(self, plural: str) -> int:
        """A page was too long: objects in the one that is asked for in its place."""
        self._learned.pop(plural, None)
        return choose_page(plural, metadata_only=False)
