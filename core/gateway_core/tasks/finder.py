"""Look-up of tasks: in memory, in the Kubernetes API by name, in the archive.

An ended task is always answered from memory; a running one is read through only where the client
could know better. How many finished tasks exist decides neither the duration of a start nor the
memory: the watch leaves them out, and a terminal state never changes (I3), so one that was read
once is kept for as long as there is room.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Mapping
from sys import intern
from typing import Any

import structlog

from gateway_core.accounts.records import AccountRecord
from gateway_core.api.errors import NotFound, Unavailable
from gateway_core.api.ids import TASK_PREFIX, IdMint, Ownership, id_to_name, name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.task import SETTLED, TERMINAL_PHASES, GatewayTask
from gateway_core.kube.api_health import ApiHealth
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesUnavailable, ObjectNotFound
from gateway_core.kube.informer import Cache, Listener
from gateway_core.kube.lists import Position, find_position
from gateway_core.kube.read_through import ReadThrough
from gateway_core.storage.limits import ARCHIVE_SECONDS, StoreTimeout
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import read_archived
from gateway_core.tasks.rendering import render_terminal

_WIRE_ID = re.compile(r"task_[a-z0-9-]{1,57}")
_log = structlog.get_logger(__name__)


MOST_ENDED = 20_000
"""Ended tasks kept, of about 1 kB each; what was not asked for the longest goes first."""
KEPT_SECONDS = 3600.0
"""How long one is kept without a read of its object: results expire after 30 days."""


class TaskRecord:
    """A task. `terminal` is the whole body of its GET once it has ended, None before.

    `position` is its place in the order of creation; None where that was not kept.
    """

    __slots__ = ("account", "action", "has_callback", "position", "service", "terminal")

    def __init__(
        self,
        account: str,
        service: str,
        action: str,
        has_callback: bool,
        terminal: bytes | None,
        position: Position | None = None,
    ) -> None:
        self.account = account
        self.service = service
        self.action = action
        self.has_callback = has_callback
        self.terminal = terminal
        self.position = position


def project_task(obj: Mapping[str, Any]) -> TaskRecord:
    """Return the record of a GatewayTask, in the table or the archive."""
    request = obj["spec"]["request"]
    status = obj.get("status") or {}
    ended = status.get("phase") in TERMINAL_PHASES
    return TaskRecord(
        intern(request["accountName"]),
        intern(request["service"]),
        intern(request["action"]),
        "callbackUrl" in request,
        render_terminal(name_to_id(obj["metadata"]["name"]), status) if ended else None,
        find_position(obj) if "creationTimestamp" in obj["metadata"] else None,
    )


class TaskCache(Cache[TaskRecord]):
    """`open_tasks` is fed by a watch of the tasks that are not Settled.

    An ended one is kept for the account that had its name then: with an Idempotency-Key, a task of
    another account of that name may have the same id.
    """

    def __init__(
        self,
        open_tasks: Cache[TaskRecord],
        accounts: Cache[AccountRecord],
        *,
        most_ended: int = MOST_ENDED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open = open_tasks
        self._accounts = accounts
        self._most = most_ended
        self._clock = clock
        self._ended: OrderedDict[str, tuple[float, int | None, TaskRecord]] = OrderedDict()

    @property
    def synced(self) -> bool:
        """Whether the open tasks have been read once."""
        return self._open.synced

    @property
    def staleness(self) -> float:
        """Seconds since the watch of open tasks last showed any sign of life."""
        return self._open.staleness

    def get(self, name: str) -> TaskRecord | None:
        """Return what is known of the task; None is no proof that there is none."""
        kept = self._ended.get(name)
        if kept is None:
            return self._open.get(name)
        since, account_id, record = kept
        is_old = self._clock() - since > KEPT_SECONDS
        if is_old or account_id != self._find_account_id(record.account):
            del self._ended[name]
            return self._open.get(name)
        self._ended.move_to_end(name)
        return record

    def items(self) -> ItemsView[str, TaskRecord]:
        """Return the open tasks; a live view."""
        return self._open.items()

    def subscribe(self, listener: Listener) -> None:
        """Has `listener` called for open tasks: an ended one does not change."""
        self._open.subscribe(listener)

    def upsert(self, obj: Object) -> TaskRecord | None:
        """Takes in a task that was read or written by name; what is known of it now."""
        if (obj.get("status") or {}).get("work") != SETTLED:
            self._open.upsert(obj)
            return self.get(obj["metadata"]["name"])
        record = project_task(obj)
        account_id = self._find_account_id(record.account)
        self._ended[obj["metadata"]["name"]] = self._clock(), account_id, record
        if len(self._ended) > self._most:
            self._ended.popitem(last=False)
        return record

    def remove(self, obj: Object) -> None:
        """Remove a task of which this version was deleted."""
        self._ended.pop(obj["metadata"]["name"], None)
        self._open.remove(obj)

    def _find_account_id(self, name: str) -> int | None:
        account = self._accounts.get(name)
        return None if account is None else account.id


class TaskFinder:
    """Finds one account's tasks; another's are as good as unknown (contract §0.5)."""

    def __init__(
        self,
        table: Cache[TaskRecord],
        fresh: ReadThrough[TaskRecord],
        kube: KubernetesClient,
        store: ObjectStore,
        mint: IdMint,
        api_health: ApiHealth,
    ) -> None:
        self._api_health = api_health
        self._table = table
        self._fresh = fresh
        self._kube = kube
        self._store = store
        self._store_timeout = StoreTimeout(ARCHIVE_SECONDS)
        self._mint = mint

    async def find(self, account: str, wire_id: str) -> TaskRecord:
        """Return what a GET answers from. NotFound, Unavailable."""
        name = self._read_id(account, wire_id)
        known = self._table.get(name)
        if known is not None and known.account == account:
            current = known.terminal is not None or not (known.has_callback or self._fresh.is_quiet)
            if current:
                return known
        elif known is not None:
            # another account's: takes the path of an unknown one, so that timing reveals nothing
            known = None
        try:
            known = await self._fresh.read(name)
        except KubernetesUnavailable as error:
            if known is not None:
                return known
            unread: Exception | None = error
        else:
            unread = None
        if known is not None and known.account == account:
            return known
        archived = await self._find_archived(account, name)
        if archived is not None:
            return project_task(archived)
        if unread is not None:
            raise Unavailable("The task cannot be looked up now.", retry_after=1) from unread
        raise unknown_task()

    async def show(self, account: str, wire_id: str) -> Object:
        """Return the account's whole object of this id. NotFound, Unavailable."""
        obj = await self.find_object(account, self._read_id(account, wire_id))
        if obj is None or obj["spec"]["request"]["accountName"] != account:
            raise unknown_task()
        return obj

    def _read_id(self, account: str, wire_id: str) -> str:
        """Return the name of the object of an id that may be the account's. NotFound."""
        if not _WIRE_ID.fullmatch(wire_id):
            raise unknown_task()
        if self._mint.check(TASK_PREFIX, account, wire_id) is Ownership.FOREIGN:
            raise unknown_task()
        return id_to_name(wire_id)

    async def find_object(self, account: str, name: str) -> Object | None:
        """Return the whole object, from the Kubernetes API or the archive. Unavailable.

        A consistent read: what another replica has created a moment ago is found.
        """
        await self._api_health.check()
        try:
            async with self._api_health.listen(gives_up=True):
                return await self._kube.get(GatewayTask.plural, name)
        except ObjectNotFound:
            return await self._find_archived(account, name)
        except (KubernetesUnavailable, TimeoutError) as error:
            raise Unavailable("The task cannot be looked up now.", retry_after=1) from error

    async def _find_archived(self, account: str, name: str) -> Object | None:
        try:
            async with self._store_timeout.bound():
                return await read_archived(self._store, account, name)
        except StoreUnavailable as error:
            _log.warning("the archive cannot be read", error=str(error))
            raise Unavailable("The task cannot be looked up now.", retry_after=1) from error


def unknown_task() -> NotFound:
    """Return the only 404 for unknown, foreign and misplaced tasks."""
    return NotFound("Task not found.")
