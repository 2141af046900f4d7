"""What the steps of a batch are given to work with, beside what those of tasks have."""

import secrets
from dataclasses import dataclass, field
from datetime import datetime

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.ids import name_to_id
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.times import parse_time
from gateway_core.batches.lifecycle import find_deadline
from gateway_core.batches.results import ResultsFolder
from gateway_core.files.files import FileRecorder
from gateway_core.files.quota import StorageGate
from gateway_core.kube.informer import Cache
from gateway_core.providers.moderators import Moderators
from gateway_operator.batches.cache import BatchCache
from gateway_operator.batches.limiter import Allowance, Lanes
from gateway_operator.batches.slots import Slots
from gateway_operator.batches.window import Budget
from gateway_operator.tasks.tools import Tools
from gateway_operator.workqueue import WorkQueue

CHECKS_AT_ONCE = 4
RUNS_AT_ONCE = 48
"""Each keeps some MiB beside its share of the budget, at 50,000 lines."""
ENDINGS_AT_ONCE = 8
"""Each keeps up to 16 MiB of results that are ahead of others."""


@dataclass(slots=True)
class BatchTools:
    """`base` is what all controllers share; `owner` is a word that no other process has.

    `checks`, `runs` and `endings` are places for the steps that go through all lines of a batch.
    """

    base: Tools
    register: BatchCache
    queue: WorkQueue
    moderators: Moderators
    providers: Cache[GatewayProvider]
    files: FileRecorder
    storage: StorageGate
    lanes: Lanes = field(default_factory=Lanes)
    budget: Budget = field(default_factory=Budget)
    checks: Slots = field(default_factory=lambda: Slots(CHECKS_AT_ONCE))
    runs: Slots = field(default_factory=lambda: Slots(RUNS_AT_ONCE))
    endings: Slots = field(default_factory=lambda: Slots(ENDINGS_AT_ONCE))
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

    def wake(self, name: str | None = None) -> None:
        """Has a batch that waits for a place look around again; all of them without a name."""
        for turns in (self.checks, self.runs, self.endings):
            if name is None:
                turns.wake_all()
            else:
                turns.wake(name)

    def left(self, batch: GatewayBatch) -> float:
        """Seconds until its window ends; 0 where it has ended."""
        return max(0.0, (find_deadline(batch) - self.now()).total_seconds())

    def age(self, batch: GatewayBatch) -> float:
        """Seconds since the batch was made."""
        return (self.now() - parse_time(batch.metadata.creation_timestamp)).total_seconds()

    def now(self) -> datetime:
        """The time of day, aware."""
        return self.base.now()


def name_file(batch: GatewayBatch, kind: str) -> str:
    """What an output File is called: `{batch_id}_output.jsonl` or `_error.jsonl` (§5.6)."""
    return f"{name_to_id(batch.metadata.name)}_{kind}.jsonl"
