"""Puts the controller of batches together; used by `compose` and by tests."""

from collections.abc import Awaitable

from gateway_core.files.files import FileRecorder
from gateway_core.files.quota import StorageGate
from gateway_core.files.quota_counters import StorageLedger
from gateway_core.providers.moderators import Moderators
from gateway_core.providers.registry import Providers
from gateway_core.providers.upstream import ModerationUpstream
from gateway_operator.batches.cache import BatchCache
from gateway_operator.batches.controller import BatchController
from gateway_operator.batches.tools import BatchTools
from gateway_operator.tasks.tools import Tools
from gateway_operator.workqueue import WorkQueue


def assemble_batches(
    tools: Tools,
    moderations: Providers[ModerationUpstream],
    ledger: StorageLedger,
    files: FileRecorder,
) -> BatchController:
    """The controller, with a work queue of its own."""

    def reconcile(name: str) -> Awaitable[None]:
        return controller.reconcile(name)

    controller = BatchController(
        BatchTools(
            base=tools,
            register=BatchCache(tools.kube),
            queue=WorkQueue(reconcile, tools.metrics.work_failures.inc),
            moderators=Moderators(tools.catalog, moderations),
            providers=moderations.table,
            files=files,
            storage=StorageGate(tools.kube, ledger),
        )
    )
    return controller
