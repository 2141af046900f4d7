"""An account's tasks of the last 30 days, the newest first.

Those whose objects exist are rows of an informer (`kube/row_index.py`). Older ones are in the
archive, which can be listed by their marks: empty objects whose keys order them by their creation,
so that a page costs one list of keys and a read of each task that it shows.
"""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from gateway_core.accounts.records import AccountIndex
from gateway_core.api.errors import Unavailable
from gateway_core.api.ids import name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_time, parse_time
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError, ObjectNotFound
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import Position
from gateway_core.kube.row_index import RowIndex
from gateway_core.storage.limits import StoreTimeout
from gateway_core.storage.objects import ObjectMissing, ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import (
    HISTORY_PREFIX,
    InputDamaged,
    archive_task,
    load_input,
    read_archived,
)
from gateway_core.tasks.finder import TaskRecord
from gateway_core.tasks.rows import WIRE_STATES, TaskRow, TaskStatus, project_task_row

MOST_MARKS = 20_000
"""Marks that are looked at for a page: one with a rare status or model may be shorter."""
MOST_READS = 500
"""Tasks that are read for a page, where marks and rows do not tell which are wanted."""
READS_AT_ONCE = 8
"""Tasks that a page reads at a time, of up to 1 MiB with their input."""
LISTS_AT_ONCE = 8
"""Pages that are read at a time; of one account, one."""
MOST_WAITING = 32
"""Calls of one account that wait for that."""
PAGE_SECONDS = 10.0
"""How long a page waits for the first list of the account's objects, and for the archive."""
SEEN_SECONDS = 1.0
"""How long it waits for a task that this process knows of."""
_LOOK_SECONDS = 0.01

_DAYS, _DAY_SECONDS, _SEQUENCES = 100_000, 86_400, 10**20
_MARK = re.compile(r"(\d{5})/(\d{5})(\d{20})((?:[0-9a-f]{2}){2,64})([cf])([0-9a-f]{8})", re.A)


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks a list shows; None stands for any.

    `key` is the name of a GatewayKey, `text` a part of the prompt in any case. `phase` is a finer
    `status`.
    """

    status: TaskStatus | None = None
    model: str | None = None
    key: str | None = None
    text: str | None = None
    phase: str | None = None

    def matches(self, row: TaskRow) -> bool:
        """Return whether the list shows the task, its prompt aside."""
        return (
            self.status in (None, row.status)
            and self.phase in (None, row.phase)
            and self.model in (None, row.model)
            and self.key in (None, row.key)
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """An archived task, as the key of its mark describes it; `model` is a digest of its id."""

    position: Position
    status: str
    model: str

    @property
    def name(self) -> str:
        """Name of the task's object."""
        return self.position[2]

    def may_match(self, wanted: TaskFilter) -> bool:
        """Return False for a task that the list does not show."""
        states = {wanted.status, WIRE_STATES.get(wanted.phase or "")} - {None}
        is_model = wanted.model is None or self.model == _digest_model(wanted.model)
        return is_model and all(self.status == state[0] for state in states if state)


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Tasks, the newest first. `last` is where the next page begins; None where there is none."""

    rows: list[TaskRow]
    last: Position | None = None

    @property
    def has_more(self) -> bool:
        """Return whether there may be older tasks."""
        return self.last is not None

    @property
    def last_id(self) -> str | None:
        """Return the id of the task after which the next page begins, None without any task."""
        if self.last is not None:
            return name_to_id(self.last[2])
        return self.rows[-1].task_id if self.rows else None


async def record_task(store: ObjectStore, obj: Object) -> None:
    """Archive an ended task, and put it into the lists of its account. StoreUnavailable.

    Idempotent: after a kill between mark and archive, both are written again.
    """
    account = obj["spec"]["request"]["accountName"]
    await archive_task(store, obj, write_mark(project_task_row(obj), account))


def write_mark(row: TaskRow, account: str) -> str:
    """Return the key of the mark of an ended task."""
    place = _write_position(row.position)
    return f"{HISTORY_PREFIX}{account}/{place}{row.status[0]}{_digest_model(row.model)}"


def read_mark(key: str) -> Mark | None:
    """Return what a mark says; None for a key that is of none."""
    found = _MARK.fullmatch(key.removeprefix(HISTORY_PREFIX).partition("/")[2])
    if found is None:
        return None
    days, seconds = _DAYS - 1 - int(found[1]), _DAY_SECONDS - 1 - int(found[2])
    name = bytes(255 - byte for byte in bytes.fromhex(found[4])).rstrip(b"\0").decode("latin-1")
    created = format_time(datetime.fromtimestamp(days * _DAY_SECONDS + seconds, UTC))
    return Mark((created, _SEQUENCES - 1 - int(found[3]), name), found[5], found[6])


def _write_position(position: Position) -> str:
    """Return a text that orders positions backwards, with a folder for each day."""
    created, sequence, name = position
    days, seconds = divmod(int(parse_time(created).timestamp()), _DAY_SECONDS)
    # the end of a name orders below all of its characters, and so above them here
    turned = bytes(255 - byte for byte in name.encode() + b"\0").hex()
    return (
        f"{_DAYS - 1 - days:05}/{_DAY_SECONDS - 1 - seconds:05}"
        f"{_SEQUENCES - 1 - sequence:020}{turned}"
    )


def _digest_model(model: str) -> str:
    return f"{zlib.crc32(model.encode()):08x}"


class TaskHistory:
    """Lists of tasks; `open_tasks` are those of all accounts that this process knows of."""

    def __init__(
        self,
        rows: RowIndex[TaskRow],
        open_tasks: Cache[TaskRecord],
        kube: KubernetesClient,
        store: ObjectStore,
    ) -> None:
        self._rows = rows
        self._kube = kube
        self._open = AccountIndex(open_tasks, "Tasks")
        self._store = store
        self._store_timeout = StoreTimeout(PAGE_SECONDS)
        self._lists = FairSemaphore(
            LISTS_AT_ONCE,
            alone=LISTS_AT_ONCE,
            per_holder=1,
            seconds=PAGE_SECONDS,
            most_waiting=MOST_WAITING,
            error=_refuse,
        )

    async def read_page(
        self,
        account: str,
        *,
        after: Position | None = None,
        limit: int,
        wanted: TaskFilter,
    ) -> HistoryPage:
        """Read a page of the tasks older than a position. Unavailable."""
        page = await self.begin_page(
            account, after=after, limit=limit, wanted=wanted, patience=PAGE_SECONDS
        )
        if page is None:
            raise Unavailable("The tasks are still being read.", retry_after=1)
        return page

    async def begin_page(
        self,
        account: str,
        *,
        after: Position | None,
        limit: int,
        wanted: TaskFilter,
        patience: float,
    ) -> HistoryPage | None:
        """Return the same; None where the objects are still listed after `patience` seconds."""
        async with self._lists.take(account):
            if not await self._rows.wait_listed(account, patience):
                return None
            await self._wait_seen(account)
            # before the archive: an object is removed only once it is archived
            most = limit + 1 if wanted.text is None else MOST_READS
            living = self._rows.walk(account, after, wanted.matches, most)
            if living is None:
                return None
            try:
                async with self._store_timeout.bound():
                    found, stop = await self._read_living(account, living, limit + 1, wanted)
                    seen = {row.name for row in living}
                    past, past_stop = await self._read_past(account, after, limit + 1, wanted, seen)
            except (StoreUnavailable, KubernetesError) as error:
                raise Unavailable("The tasks cannot be listed now.", retry_after=1) from error
        stops = [each for each in (stop, past_stop) if each is not None]
        # what is older than a stop was not looked at
        stopped = max(stops) if stops else None
        found = sorted((*found, *past), key=lambda row: row.position, reverse=True)
        if stopped is not None:
            found = [row for row in found if row.position >= stopped]
        if len(found) > limit:
            return HistoryPage(found[:limit], found[limit - 1].position)
        return HistoryPage(found, stopped)

    async def _read_living(
        self, account: str, rows: list[TaskRow], limit: int, wanted: TaskFilter
    ) -> tuple[list[TaskRow], Position | None]:
        """Read those of the rows whose prompt is wanted, at most `limit`; and where that ended."""
        if wanted.text is None:
            return rows, None
        found: list[TaskRow] = []
        for start in range(0, len(rows), READS_AT_ONCE):
            some = rows[start : start + READS_AT_ONCE]
            objects = await asyncio.gather(*(self._read_object(account, row.name) for row in some))
            for row, obj in zip(some, objects, strict=True):
                if obj is not None and await self._has_prompt(obj, wanted.text):
                    found.append(row)
            if len(found) >= limit:
                return found, some[-1].position
        return found, rows[-1].position if len(rows) == MOST_READS else None

    async def _read_object(self, account: str, name: str) -> Object | None:
        """Read a task, from the archive if its object was removed since its row was read."""
        try:
            return await self._kube.get(GatewayTask.plural, name)
        except ObjectNotFound:
            return await read_archived(self._store, account, name)

    async def _has_prompt(self, obj: Object, text: str) -> bool:
        try:
            request = GatewayTask.model_validate(obj).spec.request
            prompt = (await load_input(self._store, request)).get("prompt")
        except (ValidationError, InputDamaged, ObjectMissing):
            return False
        return isinstance(prompt, str) and text.casefold() in prompt.casefold()

    async def _wait_seen(self, account: str) -> None:
        """Wait for rows of the account's open tasks, such as one that was made a moment ago."""
        names = self._open.list_names(account)
        try:
            async with asyncio.timeout(SEEN_SECONDS):
                for name in names:
                    while self._lacks_open(account, name):  # noqa: ASYNC110 - of informers
                        await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            return

    def _lacks_open(self, account: str, name: str) -> bool:
        return self._rows.lacks(account, name) and self._open.get(account, name) is not None

    async def _read_past(
        self,
        account: str,
        after: Position | None,
        limit: int,
        wanted: TaskFilter,
        seen: AbstractSet[str],
    ) -> tuple[list[TaskRow], Position | None]:
        """Read archived tasks without an object, at most `limit`; and where the look ended.

        `seen` names the tasks whose objects were looked at: some may have been removed since.
        """
        found: list[TaskRow] = []
        due: list[Mark] = []
        looked, read = 0, 0
        async for mark in self._list_marks(account, after):
            looked += 1
            is_past = mark.name not in seen and self._rows.lacks(account, mark.name)
            if is_past and mark.may_match(wanted):
                due.append(mark)
            read_now = min(limit - len(found), MOST_READS - read)
            if len(due) >= read_now or looked >= MOST_MARKS:
                found += await self._read_all(account, due, wanted)
                read += len(due)
                due = []
                if len(found) >= limit:
                    return found, None
                is_enough = looked >= MOST_MARKS or read >= MOST_READS
                # the next page begins at a task that its client can name
                if is_enough and await self._read_all(account, [mark], TaskFilter()):
                    return found, mark.position
        return found + await self._read_all(account, due, wanted), None

    async def _list_marks(self, account: str, after: Position | None) -> AsyncIterator[Mark]:
        prefix = f"{HISTORY_PREFIX}{account}/"
        # above the characters that end the key of the mark at this position
        start = None if after is None else f"{prefix}{_write_position(after)}~"
        async for entry in self._store.list_entries(prefix, start_after=start):
            mark = read_mark(entry.key)
            if mark is not None:
                yield mark

    async def _read_all(self, account: str, marks: list[Mark], wanted: TaskFilter) -> list[TaskRow]:
        """Read the tasks of these marks that are still in the archive and wanted."""
        reads = asyncio.Semaphore(READS_AT_ONCE)

        async def read(mark: Mark) -> TaskRow | None:
            async with reads:
                obj = await read_archived(self._store, account, mark.name)
                row = None if obj is None else project_task_row(obj)
                # a task that was made anew under the name has a mark of its own
                if obj is None or row is None or row.position != mark.position:
                    return None
                if not wanted.matches(row):
                    return None
                is_wanted = wanted.text is None or await self._has_prompt(obj, wanted.text)
                return row if is_wanted else None

        return [row for row in await asyncio.gather(*map(read, marks)) if row is not None]


def _refuse() -> Unavailable:
    return Unavailable("Too many lists of tasks are being read.", retry_after=1)
