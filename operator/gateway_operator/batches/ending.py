"""The last step of a batch: its money is settled and folded, and nothing but its Files is left."""

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.ids import BATCH_FINALIZER, FOLDED_LABEL
from gateway_core.api.resource import Object
from gateway_core.api.task import SETTLED
from gateway_core.api.times import format_label_time
from gateway_operator.batches.tools import BatchTools
from gateway_operator.billing.settlement import settle_hold
from gateway_operator.tasks.statuswriter import Superseded

PAUSE_SECONDS = 5.0


class Ending:
    """Closes batches that have ended."""

    def __init__(self, tools: BatchTools) -> None:
        self._tools = tools

    async def close(self, obj: Object, batch: GatewayBatch) -> bool:
        """Settles the hold, folds the charge, removes the results and lets go of the object.

        Each part can be repeated; `work: Settled` comes last and says that all are done. A batch
        whose deletion has begun is gone before that, with its finalizer.
        """
        base, register = self._tools.base, self._tools.register
        if not await settle_hold(base, obj):
            # it may be deleted whenever it is let go, and then the hold would be given back
            self._tools.queue.add_after(batch.metadata.name, PAUSE_SECONDS)
            return False
        base.failpoints.reach("after-batch-settle")
        await base.folding.fold(obj)
        base.failpoints.reach("after-batch-fold")
        await self._tools.open_results(batch).remove()
        base.failpoints.reach("after-batch-removal")
        kept = [name for name in batch.metadata.finalizers if name != BATCH_FINALIZER]
        if kept != batch.metadata.finalizers or FOLDED_LABEL not in batch.metadata.labels:
            labels = {FOLDED_LABEL: format_label_time(base.now())}
            marks = {"metadata": {"finalizers": kept, "labels": labels}}
            obj = await register.amend(obj, marks)
            base.folding.acknowledge(obj)
        base.failpoints.reach("after-batch-finalizer")
        if batch.metadata.deletion_timestamp is not None:
            register.drop(batch.metadata.name)
            return False
        if batch.status.work != SETTLED:
            try:
                await register.commit(obj, {"work": SETTLED})
            except Superseded:
                if register.get(batch.metadata.name) is None:
                    return False
                raise
        return True
