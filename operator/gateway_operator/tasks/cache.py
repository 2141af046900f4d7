"""The tasks this replica is working on, as last seen: fed by kopf's events and by own writes."""

from collections import OrderedDict
from collections.abc import ValuesView

from gateway_core.api.ids import TASK_FINALIZER
from gateway_core.api.resource import Object

_MOST_GONE = 20_000
_Job = tuple[str, str]


class TaskCache:
    """Newest known object by name; never goes back to an older one."""

    def __init__(self) -> None:
        self._objects: dict[str, Object] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._unread: dict[str, int] = {}
        self._unwritten: set[str] = set()
        self._owners: dict[_Job, str] = {}
        self._jobs: dict[str, _Job] = {}
        self._past_jobs: OrderedDict[_Job, None] = OrderedDict()

    def __len__(self) -> int:
        """How many tasks are known."""
        return len(self._objects)

    def get(self, name: str) -> Object | None:
        """The newest known object."""
        return self._objects.get(name)

    def names(self) -> list[str]:
        """All names, as a copy."""
        return list(self._objects)

    def objects(self) -> ValuesView[Object]:
        """All objects; a live view."""
        return self._objects.values()

    def version(self, name: str) -> int:
        """The resourceVersion known of `name`, -1 if it is unknown."""
        obj = self._objects.get(name)
        return -1 if obj is None else int(obj["metadata"]["resourceVersion"])

    def upsert(self, obj: Object) -> bool:
        """Takes in an object unless it or a newer one is known; whether it was taken.

        Who managed which field is dropped: it is half of the object and nobody's business here.
        """
        meta = obj["metadata"]
        name, version = meta["name"], int(meta["resourceVersion"])
        if version <= max(self.version(name), self._gone.get(name, -1)):
            return False
        if version >= self._unread.get(name, -1):
            self._unread.pop(name, None)
        meta.pop("managedFields", None)
        self._objects[name] = obj
        self._unwritten.discard(name)
        upstream = (obj.get("status") or {}).get("upstream") or {}
        if upstream.get("jobId"):
            self.claim_job(upstream["providerName"], upstream["jobId"], name)
        return True

    def hold_back(self, obj: Object) -> None:
        """Takes in a change of the known version that is written together with the next one.

        Whatever newer version comes first takes its place: then the change is to be made anew.
        """
        name = obj["metadata"]["name"]
        self._objects[name] = obj
        self._unwritten.add(name)

    def is_unwritten(self, name: str) -> bool:
        """Whether a change of the object has been held back."""
        return name in self._unwritten

    def claim_job(self, provider: str, job_id: str, name: str) -> bool:
        """Takes note that the job is the task's; False where another has, or had, that id."""
        job = (provider, job_id)
        if self._owners.setdefault(job, name) != name:
            return False
        if self._jobs.get(name, job) != job:
            self._leave_job(name)
        self._jobs[name] = job
        self._past_jobs.pop(job, None)
        return True

    def _leave_job(self, name: str) -> None:
        """Remembers a job for a while, lest another's late answer with its id be believed."""
        job = self._jobs.pop(name, None)
        if job is None:
            return
        self._past_jobs[job] = None
        if len(self._past_jobs) > _MOST_GONE:
            oldest, _ = self._past_jobs.popitem(last=False)
            del self._owners[oldest]

    def leave(self, obj: Object) -> bool:
        """Takes in that the watch shows the object no more; whether work is left all the same.

        The watch selects open tasks, so one that has just ended leaves it too, and waits to be
        closed while it carries the finalizer. The API server tells of it with the object as it was
        before, under the version that ended it: nothing to go by, but a reason to read it.
        """
        meta = obj["metadata"]
        name, version = meta["name"], int(meta["resourceVersion"])
        if TASK_FINALIZER not in (meta.get("finalizers") or ()):
            self.drop(name, version)
            return False
        self.expect(name, version)
        return True

    def expect(self, name: str, version: int) -> bool:
        """Takes in that there is such a version, to be read by name; whether it is news."""
        if version <= max(self.version(name), self._gone.get(name, -1)):
            return False
        self._unread[name] = version
        return True

    def is_unread(self, name: str) -> bool:
        """Whether there is a newer version than the one known, to be read by name."""
        return name in self._unread

    def drop(self, name: str, version: int = -1) -> None:
        """Forgets a task, and remembers for a while not to take it up again from an old event.

        `version` is the newest that is known to be of the past.
        """
        self._gone[name] = max(version, self.version(name), self._gone.pop(name, -1))
        self._objects.pop(name, None)
        self._unread.pop(name, None)
        self._unwritten.discard(name)
        self._leave_job(name)
        if len(self._gone) > _MOST_GONE:
            self._gone.popitem(last=False)
