"""The controller of uploads: expires those whose hour is over, settles those with an outcome.

The feed shows uploads that are not settled. Of those that only wait it keeps the time of their
expiry; the object is read when there is work to do.
"""

from gateway_core.api.resource import Object
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.uploads import is_settled, read_expiry
from gateway_operator.files.storage import FileStorage, find_lacking
from gateway_operator.reconciler import ON_CHANGE, Next, Reconciler, after
from gateway_operator.uploads.settlement import Settlement


class UploadController(Reconciler[Object]):
    """Uploads of this replica's shards."""

    def __init__(self, storage: FileStorage, settlement: Settlement) -> None:
        context = self._context = storage.context
        super().__init__(context.metrics.work_failures.inc)
        self._storage = storage
        self._settlement = settlement
        self._ends: dict[str, float] = {}
        context.metrics.uploads_open.set_function(lambda: len(self._ends))

    def observe(self, kind: str | None, obj: Object) -> None:
        """Handle a watch event: `kind` is None for the initial list, or as on the wire."""
        name = obj["metadata"]["name"]
        if kind == "DELETED":
            self.forget(name)
            return
        self._ends[name] = read_expiry(obj)
        left = self._ends[name] - self._context.now().timestamp()
        if _only_waits(obj) and left > 0:
            self.queue.add_after(name, left)
        else:
            self.queue.add(name)

    async def find(self, name: str) -> Object | None:
        """Read the Upload."""
        return await self._storage.find(GatewayUpload.plural, name)

    async def step(self, obj: Object) -> Next:
        """Label, expire or settle the Upload."""
        kube = self._context.kube
        if is_settled(obj):
            await self._storage.remove_finalizer(GatewayUpload.plural, obj)
            return ON_CHANGE
        if obj["spec"].get("outcome", "Pending") == "Pending":
            outcome = self._find_outcome(obj)
            if outcome is None:
                lacking = find_lacking(obj)
                if lacking:
                    await kube.patch(GatewayUpload.plural, obj, {"metadata": lacking})
                return after(read_expiry(obj) - self._context.now().timestamp())
            obj = await kube.patch(GatewayUpload.plural, obj, {"spec": {"outcome": outcome}})
            self._context.failpoints.reach("after-upload-outcome")
        await self._settlement.settle(obj)
        return ON_CHANGE

    def forget(self, name: str) -> None:
        """Drop all that is kept in memory of `name`."""
        super().forget(name)
        self._ends.pop(name, None)

    def _find_outcome(self, obj: Object) -> str | None:
        """The outcome of a pending Upload that can no longer be completed."""
        if obj["metadata"].get("deletionTimestamp"):
            return "Cancelled"
        return "Expired" if self._context.now().timestamp() >= read_expiry(obj) else None


def _only_waits(obj: Object) -> bool:
    """Whether there is nothing to do for it before its hour is over."""
    meta = obj["metadata"]
    return (
        obj["spec"].get("outcome", "Pending") == "Pending"
        and not meta.get("deletionTimestamp")
        and not find_lacking(obj)
    )
