"""Where a task is found: the watch-fed table, the Kubernetes API by name, the archive.

The order and its reasons are those of the design: an ended task is always answered from memory, a
running one is read through only where the client could know better.
"""

import re

import structlog

from gateway_core.api.errors import NotFound, Unavailable
from gateway_core.api.ids import TASK_PREFIX, IdMint, Ownership, id_to_name
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.kube.api_health import ApiHealth
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesUnavailable, ObjectNotFound
from gateway_core.kube.informer import Cache
from gateway_core.kube.read_through import ReadThrough
from gateway_core.storage.limits import ARCHIVE_SECONDS, StoreTimeout
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import read_archived
from gateway_core.tasks.cache import TaskRecord, project_task

_WIRE_ID = re.compile(r"task_[a-z0-9-]{1,57}")
_log = structlog.get_logger(__name__)


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
        """What a GET answers from. NotFound, Unavailable."""
        if not _WIRE_ID.fullmatch(wire_id):
            raise unknown_task()
        if self._mint.check(TASK_PREFIX, account, wire_id) is Ownership.FOREIGN:
            raise unknown_task()
        name = id_to_name(wire_id)
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

    async def find_object(self, account: str, name: str) -> Object | None:
        """The whole object, from the Kubernetes API or the archive. Unavailable.

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
    """The one 404 for unknown, foreign and misplaced tasks."""
    return NotFound("Task not found.")
