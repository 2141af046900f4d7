"""The files that this process knows, by account and in the order of their creation.

Fed by the table of files; lists are cut out of it without a look at any other account's.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from gateway_apiserver.routes.compat.queries import Order
from gateway_core.contract.ids import read_order
from gateway_core.domain.files import FileRecord
from gateway_core.ports.caches import Table

Place = tuple[int, str]
"""Where a file stands: the order in its id, and its name."""


class FileIndex:
    """Follows `table`."""

    def __init__(self, table: Table[FileRecord]) -> None:
        self._table = table
        self._places: dict[str, tuple[str, Place]] = {}
        self._by_account: dict[str, list[Place]] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def walk(self, account: str, order: Order, after: int | None) -> Iterator[FileRecord]:
        """The account's files, those after that place in the order. To be used up at once."""
        places = self._by_account.get(account, [])
        for _, name in walk_places(places, order, after):
            record = self._table.get(name)
            if record is not None:
                yield record

    def _follow(self, name: str) -> None:
        record, known = self._table.get(name), self._places.get(name)
        if record is not None and known is None:
            place = (read_order(name), name)
            self._places[name] = record.account, place
            insort(self._by_account.setdefault(record.account, []), place)
        elif record is None and known is not None:
            account, place = self._places.pop(name)
            places = self._by_account[account]
            del places[bisect_left(places, place)]
            if not places:
                del self._by_account[account]


def walk_places(places: list[Place], order: Order, after: int | None) -> Iterator[Place]:
    """Those of the sorted `places` that come after `after` in that order."""
    if order == "asc":
        begin = 0 if after is None else bisect_left(places, (after + 1, ""))
        return islice(places, begin, None)
    end = len(places) if after is None else bisect_left(places, (after, ""))
    return (places[index] for index in range(end - 1, -1, -1))


def take(
    records: Iterable[FileRecord], wanted: Callable[[FileRecord], bool], limit: int
) -> tuple[list[FileRecord], bool]:
    """The first `limit` that are wanted; and whether there are more."""
    found = list(islice(filter(wanted, records), limit + 1))
    return found[:limit], len(found) > limit
