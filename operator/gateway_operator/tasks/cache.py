"""The tasks that this replica works, and writes to them."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from gateway_core.api.conditions import Reason
from gateway_core.api.ids import TASK_FINALIZER
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.tasks.lifecycle import Phase, record_failure
from gateway_operator.context import Context
from gateway_operator.reconciler import ObjectCache, StatusWriter, Superseded

_MOST_GONE = 20_000
_Job = tuple[str, str]
"""Provider and id of a job."""


class TaskCache(ObjectCache[GatewayTask]):
    """Also knows which task owns which upstream job, and which objects have to be read by name."""

    def __init__(self) -> None:
        super().__init__(GatewayTask, most_gone=_MOST_GONE)
        self._unread: dict[str, int] = {}
        self._unwritten: set[str] = set()
        self._owners: dict[_Job, str] = {}
        self._jobs: dict[str, _Job] = {}
        self._past_jobs: OrderedDict[_Job, None] = OrderedDict()

    def upsert(self, obj: Object) -> bool:
        """Keep an object unless it or a newer one is known; whether it was kept."""
        if not super().upsert(obj):
            return False
        name, version = obj["metadata"]["name"], int(obj["metadata"]["resourceVersion"])
        if version >= self._unread.get(name, -1):
            self._unread.pop(name, None)
        self._unwritten.discard(name)
        upstream = (obj.get("status") or {}).get("upstream") or {}
        if upstream.get("jobId"):
            self.claim_job(upstream["providerName"], upstream["jobId"], name)
        return True

    def hold_back(self, obj: Object) -> None:
        """Keep a change of the known version that is written together with the next one.

        A newer version that comes first replaces it: then the change is made anew.
        """
        name = obj["metadata"]["name"]
        self._objects[name] = obj
        self._unwritten.add(name)

    def is_unwritten(self, name: str) -> bool:
        """Return whether a change of the object is held back."""
        return name in self._unwritten

    def claim_job(self, provider: str, job_id: str, name: str) -> bool:
        """Note that the job is the task's; False where another task has, or had, that id."""
        job = (provider, job_id)
        if self._owners.setdefault(job, name) != name:
            return False
        if self._jobs.get(name, job) != job:
            self._retire_job(name)
        self._jobs[name] = job
        self._past_jobs.pop(job, None)
        return True

    def _retire_job(self, name: str) -> None:
        """Remember a job for a while: a late answer with its id must not become another task's."""
        job = self._jobs.pop(name, None)
        if job is None:
            return
        self._past_jobs[job] = None
        if len(self._past_jobs) > _MOST_GONE:
            oldest, _ = self._past_jobs.popitem(last=False)
            del self._owners[oldest]

    def leave(self, obj: Object) -> bool:
        """Note that the watch no longer selects the object; whether work may be left all the same.

        The watch selects open tasks, so one that has just ended leaves it too, and is still to be
        closed while it carries the finalizer. The API server sends the object as it was before,
        under the version that ended it: that is useless as data, but a reason to read it.
        """
        meta = obj["metadata"]
        name, version = meta["name"], int(meta["resourceVersion"])
        if TASK_FINALIZER not in (meta.get("finalizers") or ()):
            self.drop(name, version)
            return False
        self.expect(name, version)
        return True

    def expect(self, name: str, version: int) -> bool:
        """Note that there is such a version, to be read by name; whether it is news."""
        if self.is_known(name, version):
            return False
        self._unread[name] = version
        return True

    def is_unread(self, name: str) -> bool:
        """Return whether a newer version than the known one is to be read by name."""
        return name in self._unread

    def drop(self, name: str, version: int = -1) -> None:
        """Forget a task, and for a while ignore older events that show it."""
        super().drop(name, version)
        self._unread.pop(name, None)
        self._unwritten.discard(name)
        self._retire_job(name)


class TaskWriter(StatusWriter[GatewayTask]):
    """Status writes of tasks, which send the whole status: cheaper for the API server than a patch.

    At the resourceVersion that was read it comes to the same.
    """

    def __init__(self, context: Context, cache: TaskCache) -> None:
        super().__init__(context.kube, cache)
        self.cache = cache
        self._context = context

    async def commit(self, resource: GatewayTask, status: Mapping[str, Any]) -> None:
        """Merge `status`, together with what was held back. Superseded."""
        whole = merge_status(resource.source, status)
        await self._write(self._kube.replace_status, resource, whole)

    def hold_back(self, task: GatewayTask, status: Mapping[str, Any]) -> None:
        """Merge `status` in memory, to be written with the next commit. Superseded.

        Lost with the process, and where the object changes before that commit.
        """
        if not self.cache.is_newest(task):
            raise Superseded(f"{task.metadata.name}: it has changed")
        self.cache.hold_back({**task.source, "status": merge_status(task.source, status)})

    async def fail(
        self,
        task: GatewayTask,
        reason: Reason,
        message: str,
        limit: Mapping[str, Any] | None = None,
    ) -> None:
        """Commit the terminal failure; `limit` is the credit limit that the task failed by."""
        context = self._context
        await self.commit(task, record_failure(task, reason, message, context.now(), limit=limit))
        context.events.warn(task.source, reason="Failed", message=f"{reason}: {message}")
        context.metrics.count_end(reason, Phase.FAILED, context.age(task))
        context.failpoints.reach("after-terminal")


def merge_status(obj: Object, change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of `obj` with `change` merged into it by RFC 7396; neither is changed."""
    return _merge(obj.get("status") or {}, change)


def _merge(old: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    new = dict(old)
    for name, value in change.items():
        if value is None:
            new.pop(name, None)
        elif isinstance(value, Mapping):
            before = new.get(name)
            new[name] = _merge(before if isinstance(before, Mapping) else {}, value)
        else:
            new[name] = value
    return new
