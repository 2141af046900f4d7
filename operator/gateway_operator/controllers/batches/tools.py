"""What the steps of a batch are given to work with, beside what those of tasks have."""

import secrets
from dataclasses import dataclass, field
from datetime import datetime

from gateway_core.contract.batch import GatewayBatch
from gateway_core.contract.names import name_to_id
from gateway_core.contract.provider import GatewayProvider
from gateway_core.domain.lifecycle import parse_time
from gateway_core.ports.caches import Table
from gateway_core.usecases.batchresults import ResultsFolder
from gateway_core.usecases.files import FileRecorder
from gateway_core.usecases.moderators import Moderators
from gateway_core.usecases.storage import StorageGate
from gateway_operator.controllers.batches.lanes import Allowance, Lanes
from gateway_operator.controllers.batches.register import Register
from gateway_operator.controllers.tasks.tools import Tools
from gateway_operator.queue import WorkQueue


@dataclass(slots=True)
class BatchTools:
    """`base` is what all controllers share; `owner` is a word that no other process has."""

    base: Tools
    register: Register
    queue: WorkQueue
    moderators: Moderators
    providers: Table[GatewayProvider]
    files: FileRecorder
    storage: StorageGate
    lanes: Lanes = field(default_factory=Lanes)
    owner: str = field(default_factory=lambda: secrets.token_hex(4))

    def open_results(self, batch: GatewayBatch) -> ResultsFolder:
        """Where the batch's results are kept."""
        account = batch.spec.request.account_name
        return ResultsFolder(self.base.store, account, batch.metadata.name, self.owner)

    def allow(self, provider: str) -> Allowance:
        """This replica's part of what a provider takes."""
        obj = self.providers.get(provider)
        if obj is None:
            return Allowance(1)
        shards, spec = self.base.shards, obj.spec
        rate = spec.requests_per_second
        part = None if rate is None else rate * shards.share
        return Allowance(shards.scale(spec.max_concurrent_requests), part)

    def name_line(self, batch: GatewayBatch, number: int) -> str:
        """The id of a line, `batch_req_…`; the same whoever makes it."""
        account, uid = batch.spec.request.account_name, batch.metadata.uid
        return self.base.mint.mint_keyed("batch_req", account, uid, str(number))

    def age(self, batch: GatewayBatch) -> float:
        """Seconds since the batch was made."""
        return (self.now() - parse_time(batch.metadata.creation_timestamp)).total_seconds()

    def now(self) -> datetime:
        """The time of day, aware."""
        return self.base.now()


def name_file(batch: GatewayBatch, kind: str) -> str:
    """What an output File is called: `{batch_id}_output.jsonl` or `_error.jsonl` (§5.6)."""
    return f"{name_to_id(batch.metadata.name)}_{kind}.jsonl"
