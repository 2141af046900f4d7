"""Puts back the status of ended runs that were restored without it, from the archive.

Nothing is submitted, charged or called back again. A new run costs no read of the archive.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

import structlog

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.ids import CHARGED, FOLDED_LABEL, Ownership, name_to_id
from gateway_core.api.task import GatewayTask
from gateway_core.redis.link import CountersStale
from gateway_core.tasks.archive import read_archived
from gateway_core.tasks.restoring import is_new, is_restored, is_same_run
from gateway_operator.billing.reservations import Reservations
from gateway_operator.context import Context, find_lacking
from gateway_operator.reconciler import ObjectCache, StatusWriter, Superseded

R = TypeVar("R", GatewayTask, GatewayBatch)
NOT_ARCHIVED = (
    "It was restored without its state, and the archive does not have its result:"
    " it is not submitted again."
)

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Restoring(Generic[R]):
    """Recognises restored runs of one kind, before their first step.

    `refuse` makes the status of one that the archive does not have.
    """

    context: Context
    cache: ObjectCache[R]
    writer: StatusWriter[R]
    reservations: Reservations
    finalizer: str
    is_admitted: Callable[[R], bool]
    refuse: Callable[[R, datetime], Mapping[str, Any]]
    _since: datetime = field(init=False)
    _known: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._since = self.context.now()

    def forget(self, name: str) -> None:
        """Drop what is known of `name`."""
        self._known.pop(name, None)

    async def restore(self, run: R) -> bool:
        """Write the end of a run without a status, if it was restored; False for a new run.

        Raises Superseded, and what the stores raise.
        """
        name, uid = run.metadata.name, run.metadata.uid
        is_overdue = self.context.termination.is_overdue(run.plural)
        if self._known.get(name) == uid or (is_overdue and run.metadata.deletion_timestamp):
            return False
        is_admitted = self.is_admitted(run)
        is_sure = is_admitted and is_new(run.source, self._since)
        if not is_sure or self.cache.was_dropped(name):
            account = run.spec.request.account_name
            archived = await read_archived(self.context.store, account, name)
            if archived is not None and is_same_run(run.source, archived):
                await self._put_back(run, archived["status"])
                _log.info("status put back from the archive", object=name)
                return True
            if archived is None and self._is_of_api(run) and is_restored(run.source):
                await self.writer.commit(run, self.refuse(run, self.context.now()))
                _log.warning("restored run refused: it is not archived", object=name)
                return True
        self._known[name] = uid
        return False

    def _is_of_api(self, run: R) -> bool:
        """Return whether an API made the name, perhaps that of another gateway."""
        name, account = run.metadata.name, run.spec.request.account_name
        prefix, _, _ = name.partition("-")
        found = self.context.mint.check(prefix, account, name_to_id(name))
        return found is not Ownership.NAMED

    async def _put_back(self, run: R, status: Mapping[str, Any]) -> None:
        """Label the run as charged, end a hold that a rebuild may have given it, put it back."""
        meta = run.metadata
        lacking = find_lacking(run.source, self.finalizer)
        if meta.deletion_timestamp is not None:
            lacking.pop("finalizers", None)
        if lacking or meta.labels.get(FOLDED_LABEL) != CHARGED:
            lacking["labels"] = {**lacking.get("labels", {}), FOLDED_LABEL: CHARGED}
            run = await self.writer.amend(run, {"metadata": lacking})
        account = run.spec.request.account_name
        try:
            await self.reservations.counters.settle(account, meta.name, 0, self.context.now())
        except CountersStale as error:
            # a rebuild that began before the label was there may still give it a hold
            await self.reservations.rebuild(account)
            raise Superseded(f"{meta.name}: the money of {account} is being rebuilt") from error
        await self.writer.commit(run, status)
