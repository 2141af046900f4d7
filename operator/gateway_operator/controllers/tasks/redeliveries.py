"""How the operator learns that an admin wants the callback of a settled task once more.

The feed does not show settled tasks, of which there may be many. A table of its own selects those
whose `spec.redeliveries` was ever raised; each that asks for more than was done is looked at, and
each that was settled once more and not closed again, which the janitor's sweep does not select.
"""

from gateway_core.contract.task import GatewayTask
from gateway_core.domain.lifecycle import SETTLED, is_closed, wants_redelivery
from gateway_core.ports.caches import Table
from gateway_core.ports.records import Object
from gateway_operator.livetasks import LiveTasks
from gateway_operator.queue import WorkQueue
from gateway_operator.shards import Shards

SELECTOR = f"status.work={SETTLED},spec.redeliveries!=0"


def project_wanted(obj: Object, shards: Shards) -> int | None:
    """The object's version if it is of these shards and there is something to do for it."""
    if not shards.owns(obj["metadata"].get("labels")):
        return None
    task = GatewayTask.model_validate(obj)
    if is_closed(task) and not wants_redelivery(task):
        return None
    return int(obj["metadata"]["resourceVersion"])


class Redeliveries:
    """Puts tasks on the queue as they come into the table."""

    def __init__(self, wanted: Table[int], live: LiveTasks, queue: WorkQueue) -> None:
        self._wanted = wanted
        self._live = live
        self._queue = queue
        wanted.subscribe(self._notice)

    def _notice(self, name: str) -> None:
        version = self._wanted.get(name)
        if version is not None and self._live.expect(name, version):
            self._queue.add(name)
