"""What the steps of a task are given to work with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway_core.accounts.guardrails import Policies
from gateway_core.api.account import AccountDefaults, GatewayAccount, GatewayUser
from gateway_core.api.conditions import Reason
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import IdMint
from gateway_core.api.key import GatewayKey
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.billing.counters import Counters
from gateway_core.billing.ledger import Rebuilder
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Catalog
from gateway_core.providers.notices import Notice
from gateway_core.providers.registry import Providers
from gateway_core.providers.upstream import Upstream
from gateway_core.storage.objects import ObjectStore
from gateway_core.tasks.lifecycle import Phase, deadline, record_failure
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.callbacks.client import CallbackClient
from gateway_operator.events import AdminEvents
from gateway_operator.failpoints import Failpoints
from gateway_operator.metrics import Metrics
from gateway_operator.shards import Shards
from gateway_operator.tasks.cache import TaskCache
from gateway_operator.tasks.calls import TaskTraces, UpstreamCalls
from gateway_operator.tasks.outputs import Outputs
from gateway_operator.tasks.statuswriter import StatusWriter
from gateway_operator.workqueue import WorkQueue


@dataclass(slots=True)
class Tools:
    """The parts of the operator a step may use; `catalog` and `now` are called for their value.

    `notify_address` makes the address that a task's provider may call, None where push is off.
    """

    shards: Shards
    kube: KubernetesClient
    store: ObjectStore
    counters: Counters
    rebuilder: Rebuilder
    accounts: Cache[GatewayAccount]
    users: Cache[GatewayUser]
    keys: Cache[GatewayKey]
    policies: Policies[GatewayGuardrail]
    catalog: Callable[[], Catalog]
    providers: Providers[Upstream]
    outputs: Outputs
    journal: StatusWriter
    folding: UsageAggregator
    live: TaskCache
    queue: WorkQueue
    alarms: AdminEvents
    courier: CallbackClient
    callback_schedule: tuple[float, ...]
    mint: IdMint
    failpoints: Failpoints
    metrics: Metrics
    now: Callable[[], datetime]
    notify_address: Callable[[Notice], str | None]
    defaults: AccountDefaults = field(default_factory=AccountDefaults)
    traces: TaskTraces = field(default_factory=TaskTraces)
    calls: UpstreamCalls = field(init=False)

    def __post_init__(self) -> None:
        self.calls = UpstreamCalls(self.metrics, self.traces)

    def notify_url(self, task: GatewayTask) -> str | None:
        """The address that the task's provider may call, None where push is off."""
        return self.notify_address(Notice(task.metadata.name, task.metadata.uid))

    def look_again(self, task: GatewayTask, seconds: float) -> None:
        """Has the task looked at after `seconds`, or at its deadline if that comes first."""
        left = (deadline(task) - self.now()).total_seconds()
        self.queue.add_after(task.metadata.name, min(seconds, max(0.0, left)))

    def age(self, task: GatewayTask) -> float:
        """Seconds since the task was made."""
        return (self.now() - parse_time(task.metadata.creation_timestamp)).total_seconds()

    async def fail(
        self,
        obj: Object,
        task: GatewayTask,
        reason: Reason,
        message: str,
        limit: Mapping[str, Any] | None = None,
    ) -> None:
        """Commits the task's terminal failure; `limit` is the credit limit that it failed by."""
        failure = record_failure(task, reason, message, self.now(), limit=limit)
        await self.journal.commit(obj, failure)
        self.metrics.count_end(reason, Phase.FAILED, self.age(task))
        self.failpoints.reach("after-terminal")
