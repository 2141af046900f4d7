"""Rows of an account's tasks, batches or days of usage, kept while people read its pages.

The Kubernetes API lists by name alone, and a list of thousands takes seconds. So the first page of
an account begins an informer of its objects, which ends some minutes after the last page. Memory of
these accounts: about 600 bytes for each task and batch, and up to 75 KB for a day.
"""

import asyncio
import itertools
import re
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar
from weakref import ref

from gateway_core.api.errors import InvalidRequest, Unavailable
from gateway_core.api.times import parse_time
from gateway_core.kube.informer import Informer
from gateway_core.kube.lists import Position
from gateway_core.kube.retries import GIVE_UP_SECONDS

MOST_ACCOUNTS, MOST_ROWS = 64, 200_000
"""Kept at once, of all accounts; those go first whose pages were read longest ago."""
MOST_OF_ACCOUNT = MOST_ROWS // 2
"""Rows of one account: with more it is not followed, and the others keep their rows."""
LIFE_SECONDS = 600.0
"""How long an account is followed after its last page."""
PATIENCE_SECONDS = 1.0
"""How long a page waits for the first list, before it says that it is being read; and half as long
again for archived usage. Of an account with few objects no page says so."""
NEW_SECONDS = 5.0
"""A page that was answered before its account was listed opens its event stream within this."""
LISTS_AT_ONCE = 2
"""First lists of one kind."""
MOST_UNMARKED = 1000
"""Rows of an account that were marked a moment ago."""
_HEARTBEAT_SECONDS = 10
_QUIET_SECONDS = _HEARTBEAT_SECONDS + 10.0
_RESYNC_SECONDS = 86_400.0
"""A watch shows every change, or fails and lists anew: a resync would cost as much as a list."""
_LOOK_SECONDS = 30.0


_CURSOR = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z)~(\d{1,20})~([a-z0-9-]{1,63})", re.A)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of lists, beginning with the object's place in the order of creation.

    `find_marked` returns all rows that are marked.
    """

    created: str
    sequence: int
    name: str

    @property
    def position(self) -> Position:
        """Its place in the order of creation."""
        return self.created, self.sequence, self.name

    @property
    def is_marked(self) -> bool:
        """True if pages read it without a list."""
        return False

    def follow(self, before: "Row | None") -> Self:
        """Return the marked row, given the one that it takes the place of."""
        return self


R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class RowPage(Generic[R]):
    """Rows, the newest first, and the cursor of the next page; none while they are being read."""

    rows: list[R]
    more: str = ""
    is_read: bool = True


_POSITION = attrgetter("created", "sequence", "name")


class _Account(Generic[R]):
    """Rows of one account in the order of creation."""

    def __init__(self, informer: Informer[R], clock: Callable[[], float], number: int) -> None:
        self.informer = informer
        self.number = number
        self.rows: list[R] = []
        self.marked: dict[str, R] = {}
        self.unmarked: OrderedDict[str, tuple[R, int]] = OrderedDict()
        """Rows as they were marked last, and the version of the record since which they are not."""
        self.removed = 0
        self.read_at = clock()
        self.heard_at: float | None = None
        self.listed_at: float | None = None
        self.following: asyncio.Task[None] | None = None
        self._gone = 0
        self._clock = clock

    @property
    def is_silent(self) -> bool:
        """True if what is known may be old, or the first list does not come on."""
        if self.informer.synced:
            return self.informer.staleness > _QUIET_SECONDS
        return self.heard_at is not None and self._clock() - self.heard_at > GIVE_UP_SECONDS

    def walk(self, position: Position | None, matches: Callable[[R], bool], limit: int) -> list[R]:
        """At most `limit` rows older than a position that match, the newest first."""
        rows, found, get = self.rows, list[R](), self.informer.get
        place = len(rows) if position is None else bisect_left(rows, position, key=_POSITION)
        while place and len(found) < limit:
            place -= 1
            row = rows[place]
            if matches(row) and get(row.name) is row:
                found.append(row)
        return found

    def end(self) -> None:
        """Stop following."""
        if self.following is not None:
            self.following.cancel()
            # a cancelled task refers to its frames: a cycle with what they refer to
            self.following = None

    def note(self, name: str) -> None:
        """Take a change of an object over from the informer."""
        self.heard_at = self._clock()
        row, rows = self.informer.get(name), self.rows
        before = self.marked.pop(name, None)
        if row is not None and row.is_marked:
            self.marked[name] = row.follow(before)
        elif row is not None and before is not None:
            self.unmarked[name] = before, self.informer.find_version(name)
            if len(self.unmarked) > MOST_UNMARKED:
                self.unmarked.popitem(last=False)
        if row is None:
            self.removed += 1
            self._gone += 1
            # a row that has gone is left out by each walk: its place is not known here
            if self._gone > 100 + len(rows) // 2:
                self.rows = [row for row in rows if self.informer.get(row.name) is row]
                self._gone = 0
        else:
            place = bisect_left(rows, row.position, key=_POSITION)
            if place < len(rows) and rows[place].name == name:
                rows[place] = row
            else:
                rows.insert(place, row)


class RowIndex(Generic[R]):
    """Rows of one kind by account, made of its objects by `project`; `noun` names several.

    `make` returns an informer, as `Informer` with its client given. `owner` is the field that names
    an object's account.
    """

    def __init__(
        self,
        make: Callable[..., Informer[R]],
        plural: str,
        project: Callable[[Mapping[str, Any]], R | None],
        noun: str,
        clock: Callable[[], float] = time.monotonic,
        owner: str = "spec.request.accountName",
    ) -> None:
        self.plural = plural
        self._make = make
        self._project = project
        self._noun = noun
        self._clock = clock
        self._owner = owner
        self._kept: OrderedDict[str, _Account[R]] = OrderedDict()
        self._too_long: dict[str, float] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._lists = asyncio.Semaphore(LISTS_AT_ONCE)
        self._numbers = itertools.count(1)

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the account after each change of its rows, and once it is listed."""
        self._listeners.append(listener)

    def is_new(self, account: str) -> bool:
        """Return whether pages that were answered a moment ago may lack the account's rows."""
        kept = self._kept.get(account)
        if kept is None or kept.listed_at is None:
            return False
        return self._clock() - kept.listed_at < NEW_SECONDS

    async def read_page(
        self,
        account: str,
        *,
        after: str = "",
        limit: int,
        matches: Callable[[R], bool] = lambda _: True,
    ) -> RowPage[R]:
        """Return a page of the rows that match, after a cursor. InvalidRequest, Unavailable."""
        position = read_cursor(after) if after else None
        await self.wait_listed(account)
        found = self.walk(account, position, matches, limit + 1)
        if found is None:
            return RowPage([], is_read=False)
        rows = found[:limit]
        return RowPage(rows, write_cursor(rows[-1].position) if len(found) > limit else "")

    def walk(
        self, account: str, after: Position | None, matches: Callable[[R], bool], limit: int
    ) -> list[R] | None:
        """At most `limit` rows older than a position that match, the newest first; Unavailable.

        None while they are being listed for the first time.
        """
        if account in self._too_long:
            raise Unavailable(
                f"The account has more than {MOST_OF_ACCOUNT:,} {self._noun}, too many for a list."
                " Those whose ids are known can be opened.",
                retry_after=60,
            )
        # others may have taken its place meanwhile
        kept = self._use(account)
        if kept.is_silent:
            raise Unavailable(f"The {self._noun} cannot be read now.", retry_after=1)
        return kept.walk(after, matches, limit) if kept.informer.synced else None

    def lacks(self, account: str, name: str) -> bool:
        """Return whether no row of the account has this name."""
        kept = self._kept.get(account)
        return kept is None or kept.informer.get(name) is None

    async def wait_listed(self, account: str, seconds: float = PATIENCE_SECONDS) -> bool:
        """False while the account is being listed for the first time, after a wait of `seconds`."""
        if account in self._too_long:
            return True
        kept = self._use(account)
        if not (kept.informer.synced or kept.is_silent):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await kept.informer.wait_synced()
        return kept.informer.synced or account in self._too_long or kept.is_silent

    def find_marked(self, account: str) -> list[R] | None:
        """Return all rows that are marked; None where the account is not listed yet, or silent."""
        if account in self._too_long:
            return None
        kept = self._use(account)
        if kept.is_silent or not kept.informer.synced:
            return None
        return [*kept.marked.values()]

    def find_unmarked(self, account: str, version: int) -> list[R]:
        """Return rows that lost their mark after a version of the record, as they were with it.

        Rows that lost it earlier are forgotten.
        """
        kept = self._kept.get(account)
        if kept is None:
            return []
        while kept.unmarked and next(iter(kept.unmarked.values()))[1] <= version:
            kept.unmarked.popitem(last=False)
        return [row for row, _ in kept.unmarked.values()]

    def find_epoch(self, account: str) -> tuple[int, int]:
        """Return what changes when an object of the account goes, or it is followed anew."""
        kept = self._kept.get(account)
        return (0, 0) if kept is None else (kept.number, kept.removed)

    def find_version(self, account: str) -> int:
        """Return the version of the record up to which the rows have every change, or 0."""
        kept = self._kept.get(account)
        return 0 if kept is None else kept.informer.version

    def find_list_version(self, account: str) -> int:
        """Return the version of the latest full list, after which each change was seen, or 0."""
        kept = self._kept.get(account)
        return 0 if kept is None else kept.informer.listed_version

    def has_seen(self, account: str, version: int) -> bool:
        """Return whether the rows have every change up to a version of the record."""
        return self.find_version(account) >= version

    async def run(self) -> None:
        """Stop informers of accounts without recent page reads; all of them on cancellation."""
        try:
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                oldest = self._clock() - LIFE_SECONDS
                while self._kept and next(iter(self._kept.values())).read_at < oldest:
                    self._drop_oldest()
                for account, found_at in [*self._too_long.items()]:
                    # its tasks may have been deleted since
                    if found_at < oldest:
                        del self._too_long[account]
        finally:
            while self._kept:
                self._drop_oldest()

    def _use(self, account: str) -> _Account[R]:
        kept = self._kept.get(account) or self._follow(account)
        self._kept.move_to_end(account)
        kept.read_at = self._clock()
        return kept

    def _follow(self, account: str) -> _Account[R]:
        informer = self._make(
            self.plural,
            self._project,
            field_selector=f"{self._owner}={account}",
            heartbeat_seconds=_HEARTBEAT_SECONDS,
            resync_seconds=_RESYNC_SECONDS,
            most_tombstones=0,
        )
        kept = _Account(informer, self._clock, next(self._numbers))
        # with a strong reference both would stay in memory until the next garbage collection
        informer.subscribe(partial(self._note, account, ref(kept)))
        self._kept[account] = kept
        if len(self._kept) > MOST_ACCOUNTS:
            self._drop_oldest()
        kept.following = asyncio.create_task(self._run(account, kept))
        return kept

    async def _run(self, account: str, kept: _Account[R]) -> None:
        async with self._lists:
            kept.heard_at = self._clock()
            running = asyncio.create_task(kept.informer.run())
            running.add_done_callback(lambda _: self._forget(account, kept))
            try:
                await kept.informer.wait_synced()
            except asyncio.CancelledError:
                running.cancel()
                raise
        kept.listed_at = self._clock()
        self._tell(account)
        await running

    def _forget(self, account: str, kept: _Account[R]) -> None:
        """Begin anew at the next page, where an account is no longer followed."""
        if self._kept.get(account) is kept:
            del self._kept[account]
            kept.end()

    def _tell(self, account: str) -> None:
        for listener in self._listeners:
            listener(account)

    def _note(self, account: str, known: "ref[_Account[R]]", name: str) -> None:
        kept = known()
        # the informer of one that was dropped still reads the rest of a page
        if kept is None or self._kept.get(account) is not kept:
            return
        kept.note(name)
        self._bound(account, kept)
        if kept.listed_at is not None:
            self._tell(account)

    def _bound(self, account: str, kept: _Account[R]) -> None:
        # `rows` has removed ones too
        if len(kept.informer.items()) > MOST_OF_ACCOUNT:
            self._too_long[account] = self._clock()
            del self._kept[account]
            kept.end()
            self._tell(account)
            return
        total = sum(len(each.rows) for each in self._kept.values())
        while total > MOST_ROWS and len(self._kept) > 1:
            total -= self._drop_oldest(spared=kept)

    def _drop_oldest(self, spared: _Account[R] | None = None) -> int:
        account = next(name for name, each in self._kept.items() if each is not spared)
        oldest = self._kept.pop(account)
        oldest.end()
        return len(oldest.rows)


def write_cursor(position: Position) -> str:
    """Return the cursor of the rows older than this position."""
    return "~".join(map(str, position))


def read_cursor(text: str) -> Position:
    """Return the position of a cursor. InvalidRequest."""
    found = _CURSOR.fullmatch(text)
    with suppress(ValueError):
        if found is not None and parse_time(found[1]):
            return found[1], int(found[2]), found[3]
    raise InvalidRequest("The address is malformed.")
