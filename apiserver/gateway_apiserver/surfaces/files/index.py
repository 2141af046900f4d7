"""The files that this process knows, by account and in the order of their creation.

Fed by the table of files; lists are cut out of it without a look at any other account's.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from gateway_core.api.ids import read_order
from gateway_core.files.files import FileRecord
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import Order


class FileOrder:
    """Names of files in the order of their creation.

    Two lists side by side: a tuple for each of a hundred thousand files would be twice as large.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        ordered = sorted((read_order(name), name) for name in names)
        self._orders = [order for order, _ in ordered]
        self._names = [name for _, name in ordered]

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """Adds a name that is not there."""
        order = read_order(name)
        place = bisect_right(self._orders, order)
        self._orders.insert(place, order)
        self._names.insert(place, name)

    def remove(self, name: str) -> None:
        """Removes a name that is there."""
        place = self._names.index(name, bisect_left(self._orders, read_order(name)))
        del self._orders[place], self._names[place]

    def walk(self, order: Order, after: int | None) -> Iterator[str]:
        """The names after a place (see `read_order`) in that order. To be used up at once."""
        if order == "asc":
            begin = 0 if after is None else bisect_right(self._orders, after)
            return islice(self._names, begin, None)
        end = len(self._names) if after is None else bisect_left(self._orders, after)
        return (self._names[index] for index in range(end - 1, -1, -1))


class FileIndex:
    """Follows `table`."""

    def __init__(self, table: Cache[FileRecord]) -> None:
        self._table = table
        self._accounts: dict[str, str] = {}
        self._by_account: dict[str, FileOrder] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def walk(self, account: str, order: Order, after: int | None) -> Iterator[FileRecord]:
        """The account's files, those after that place in the order. To be used up at once."""
        for name in self._by_account.get(account, FileOrder()).walk(order, after):
            record = self._table.get(name)
            if record is not None:
                yield record

    def _follow(self, name: str) -> None:
        record, account = self._table.get(name), self._accounts.get(name)
        if record is not None and account is None:
            self._accounts[name] = record.account
            self._by_account.setdefault(record.account, FileOrder()).add(name)
        elif record is None and account is not None:
            del self._accounts[name]
            files = self._by_account[account]
            files.remove(name)
            if not files:
                del self._by_account[account]


def take(
    records: Iterable[FileRecord], wanted: Callable[[FileRecord], bool], limit: int
) -> tuple[list[FileRecord], bool]:
    """The first `limit` that are wanted; and whether there are more."""
    found = list(islice(filter(wanted, records), limit + 1))
    return found[:limit], len(found) > limit
