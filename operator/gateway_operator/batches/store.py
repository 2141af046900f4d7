"""The batches that this replica works: writes to them, their results and the ids of lines."""

import secrets

from gateway_core.api.batch import GatewayBatch
from gateway_core.batches.lifecycle import find_deadline
from gateway_core.batches.results import ResultsFolder
from gateway_operator.cache import ObjectCache, StatusWriter
from gateway_operator.context import Context

_MOST_GONE = 2000


class BatchStore(StatusWriter[GatewayBatch]):
    """Batches in the record, and their results in the object store."""

    def __init__(self, context: Context) -> None:
        self.cache = ObjectCache(GatewayBatch, most_gone=_MOST_GONE)
        super().__init__(context.kube, self.cache)
        self._context = context
        # two owners of one batch write their results under different names
        self._owner = secrets.token_hex(4)

    def open_results(self, batch: GatewayBatch) -> ResultsFolder:
        """The folder of the batch's results."""
        account = batch.spec.request.account_name
        return ResultsFolder(self._context.store, account, batch.metadata.name, self._owner)

    def name_line(self, batch: GatewayBatch, number: int) -> str:
        """The id of a line, `batch_req_…`; the same in every process."""
        account, uid = batch.spec.request.account_name, batch.metadata.uid
        return self._context.mint.mint_keyed("batch_req", account, uid, str(number))

    def seconds_left(self, batch: GatewayBatch) -> float:
        """Seconds until the completion window ends; 0 once it has ended."""
        return max(0.0, (find_deadline(batch) - self._context.now()).total_seconds())
