"""Ends uploads whose hour is over and settles those whose outcome stands; what kopf's feed calls.

The feed shows uploads that are not settled. Nothing is kept of them but when they end: an Upload is
read when there is something to be done with it.
"""

from gateway_core.api.resource import Object
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.uploads import is_settled, read_expiry
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_operator.files.storage import FileStorage, find_lacking
from gateway_operator.uploads.settlement import Settlement
from gateway_operator.workqueue import WorkQueue

CONFLICT_SECONDS = 0.2


class UploadController:
    """Level-triggered: reads the object, does what is due, looks again when it must."""

    def __init__(self, tools: FileStorage, settlement: Settlement) -> None:
        self._tools = tools
        self._settlement = settlement
        self._queue = WorkQueue(self._look, tools.metrics.work_failures.inc)
        self._ends: dict[str, float] = {}

    @property
    def open(self) -> int:
        """How many uploads of these shards are not settled."""
        return len(self._ends)

    def observe(self, kind: str | None, obj: Object) -> None:
        """Takes in a watch event: `kind` is None for the initial list, or as on the wire."""
        name = obj["metadata"]["name"]
        if kind == "DELETED":
            self._ends.pop(name, None)
            self._queue.forget(name)
            return
        self._ends[name] = read_expiry(obj)
        left = self._ends[name] - self._tools.now().timestamp()
        if _is_quiet(obj) and left > 0:
            self._queue.add_after(name, left)
        else:
            self._queue.add(name)

    def take_up(self, name: str) -> None:
        """Has an Upload looked at, whatever is known of it."""
        self._queue.add(name)

    async def run(self) -> None:
        """Works until cancelled."""
        await self._queue.run()

    async def end(self) -> None:
        """Takes nothing more, and leaves what is under way a moment."""
        await self._queue.drain(1.0)

    async def _look(self, name: str) -> None:
        obj = await self._tools.find(GatewayUpload.plural, name)
        if obj is None:
            self._ends.pop(name, None)
            return
        try:
            await self._see_to(obj)
        except (WriteConflict, ObjectNotFound):
            # another has changed it: it is read anew
            self._queue.add_after(name, CONFLICT_SECONDS)

    async def _see_to(self, obj: Object) -> None:
        name = obj["metadata"]["name"]
        if is_settled(obj):
            await self._tools.let_go(GatewayUpload.plural, obj)
            return
        if obj["spec"].get("outcome", "Pending") == "Pending":
            outcome = self._find_outcome(obj)
            if outcome is None:
                lacking = find_lacking(obj)
                if lacking:
                    await self._tools.kube.patch(GatewayUpload.plural, obj, {"metadata": lacking})
                left = read_expiry(obj) - self._tools.now().timestamp()
                self._queue.add_after(name, left)
                return
            obj = await self._tools.kube.patch(
                GatewayUpload.plural, obj, {"spec": {"outcome": outcome}}
            )
            self._tools.failpoints.reach("after-upload-outcome")
        await self._settlement.settle(obj)

    def _find_outcome(self, obj: Object) -> str | None:
        """The outcome of a pending Upload that nobody completes any more."""
        if obj["metadata"].get("deletionTimestamp"):
            return "Cancelled"
        return "Expired" if self._tools.now().timestamp() >= read_expiry(obj) else None


def _is_quiet(obj: Object) -> bool:
    """Whether there is nothing to do for it before its hour is over."""
    meta = obj["metadata"]
    return (
        obj["spec"].get("outcome", "Pending") == "Pending"
        and not meta.get("deletionTimestamp")
        and not find_lacking(obj)
    )
