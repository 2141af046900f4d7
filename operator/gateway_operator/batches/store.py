"""The batches that this replica works: writes to them, their results, and what they run on.

A batch from REST is admitted already: its name carries the API's keyed tag, and its object where
its input is stored. Of any other only the names are trusted: its File is read, of its own account,
and its key is judged as REST would judge it.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway_core.accounts.guardrails import Policy
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import BATCH_FINALIZER, BATCH_PREFIX, name_to_id
from gateway_core.api.resource import ObjectRef
from gateway_core.api.times import parse_time
from gateway_core.batches.lifecycle import describe_wait, find_deadline, record_wait
from gateway_core.batches.lines import Problem
from gateway_core.batches.results import ResultsFolder
from gateway_core.kube.errors import ObjectNotFound
from gateway_operator.accounts.credentials import SIGHT_SECONDS, Credentials, NotYet, Refusal
from gateway_operator.context import Context, find_lacking
from gateway_operator.reconciler import ObjectCache, StatusWriter

_MOST_GONE = 2000
PATIENCE_SECONDS = 10.0
"""Age of a batch from which waits for its money are shown: most are shorter."""
LEDGER = "its account's balance, or an object that it names, cannot be read now"
TURN = "its turn: as many batches as may at a time are being worked"


class BatchStore(StatusWriter[GatewayBatch]):
    """Writes to batches, and their results in the object store."""

    def __init__(self, context: Context) -> None:
        self.cache = ObjectCache(GatewayBatch, most_gone=_MOST_GONE)
        super().__init__(context.kube, self.cache)
        self._context = context
        # two owners of one batch write their results under different names
        self._owner = secrets.token_hex(4)

    async def fail(self, batch: GatewayBatch, reason: Reason, failure: Mapping[str, Any]) -> None:
        """Commit a failure before or without results."""
        await self.commit(batch, failure)
        # without the problem's text, which may quote the client's input
        self._context.events.warn(batch.source, reason="Failed", message=reason)
        self._context.metrics.count_batch_end(failure["phase"], self._context.age(batch))

    async def show_wait(self, batch: GatewayBatch, reason: Reason, text: str) -> bool:
        """Show what a batch that does not run yet waits for; whether it was written. Superseded."""
        is_short = reason is Reason.WAITING_FOR_LEDGER
        if is_short and self._context.age(batch) < PATIENCE_SECONDS:
            return False
        change = record_wait(batch, reason, text, self._context.now())
        if not change:
            return False
        await self.commit(batch, change)
        message = describe_wait(batch, text)
        self._context.events.warn(batch.source, reason=reason, message=message)
        return True

    def open_results(self, batch: GatewayBatch) -> ResultsFolder:
        """Return the folder of the batch's results."""
        account = batch.spec.request.account_name
        return ResultsFolder(self._context.store, account, batch.metadata.name, self._owner)

    def name_line(self, batch: GatewayBatch, number: int) -> str:
        """Return the id of a line, `batch_req_…`; the same in every process."""
        account, uid = batch.spec.request.account_name, batch.metadata.uid
        return self._context.mint.mint_keyed("batch_req", account, uid, str(number))

    def seconds_left(self, batch: GatewayBatch) -> float:
        """Return seconds until the completion window ends; 0 once it has ended."""
        return max(0.0, (find_deadline(batch) - self._context.now()).total_seconds())


class Unfit(Exception):
    """The batch cannot be run: why it fails, and how many lines it has as far as known."""

    def __init__(self, reason: Reason, *problems: Problem, total: int = 0) -> None:
        super().__init__(problems[0].message if problems else "")
        self.reason = reason
        self.problems = problems
        self.total = total


@dataclass(eq=False)
class BatchInputs:
    """Finds what batches run on."""

    context: Context
    store: BatchStore
    credentials: Credentials

    def is_admitted(self, batch: GatewayBatch) -> bool:
        """Return whether the API has made the batch: only the API can make a name with this tag."""
        account, name = batch.spec.request.account_name, batch.metadata.name
        is_admitted = batch.spec.request.fingerprint is not None
        return is_admitted and self.context.is_minted(BATCH_PREFIX, name, account)

    async def mark(self, batch: GatewayBatch) -> GatewayBatch:
        """Give the object the labels and the finalizer it should have, if they differ."""
        lacking = find_lacking(batch.source, BATCH_FINALIZER)
        if not lacking or batch.metadata.deletion_timestamp is not None:
            return batch
        return await self.store.amend(batch, {"metadata": lacking})

    async def find_segments(self, batch: GatewayBatch) -> Sequence[ObjectRef]:
        """Where the input is stored. Unfit, NotYet, RecordUnavailable.

        A File whose deletion has begun keeps its bytes until the batches that name it have ended.
        A batch that was admitted or has begun may read it; a new one may not.
        """
        request = batch.spec.request
        is_admitted = self.is_admitted(batch)
        if is_admitted and request.segments is not None:
            return request.segments
        name = request.input_file_name
        try:
            obj = await self.context.kube.get(GatewayFile.plural, name)
        except ObjectNotFound:
            obj = None
        begun = is_admitted or batch.status.start_time is not None
        file = None if obj is None else GatewayFile.model_validate(obj)
        if file is not None and file.spec.request.account_name != request.account_name:
            file = None
        if file is None or not (begun or self._is_there(file)):
            if self.context.age(batch) < SIGHT_SECONDS:
                # it may only not have been applied yet
                raise NotYet
            text = f"File {name_to_id(name)} does not exist."
            raise Unfit(Reason.INVALID_REQUEST, Problem("file_not_found", text, "input_file_id"))
        if file.spec.request.purpose != "batch":
            text = f"File {name_to_id(name)} is not for batches: its purpose must be `batch`."
            fault = Problem("invalid_file_purpose", text, "input_file_id")
            raise Unfit(Reason.INVALID_REQUEST, fault)
        return file.spec.request.segments

    def find_policy(self, batch: GatewayBatch) -> Policy | None:
        """Return the policy of the batch's key; None where it names no key. Unfit, NotYet."""
        request, age = batch.spec.request, self.context.age(batch)
        if self.is_admitted(batch):
            return self.credentials.recall_policy(request)
        try:
            self.credentials.find_account(request, age)
            return self.credentials.find_policy(request, age)
        except Refusal as refusal:
            fault = Problem("invalid_value", str(refusal))
            raise Unfit(Reason.INVALID_REQUEST, fault) from None

    def _is_there(self, file: GatewayFile) -> bool:
        """Return whether clients can see the File."""
        if file.metadata.deletion_timestamp is not None:
            return False
        expiry: datetime | None = None
        if file.spec.request.expiration_time is not None:
            expiry = parse_time(file.spec.request.expiration_time)
        return expiry is None or self.context.now() < expiry
