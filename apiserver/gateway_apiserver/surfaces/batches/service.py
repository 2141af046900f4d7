"""Batches of all accounts: found, listed, cancelled (contract §5). The operator runs them."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from gateway_apiserver.surfaces.batches.models import Batch
from gateway_apiserver.surfaces.batches.rendering import has_ended, read_status, render_batch
from gateway_apiserver.surfaces.models import PageQuery
from gateway_apiserver.surfaces.validation import unknown
from gateway_core.api.errors import Conflict, NotFound
from gateway_core.api.ids import BATCH_PREFIX, CANCELLED_AT_ANNOTATION, name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.times import format_time
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.kinds import BATCHES
from gateway_core.kube.lists import find_position
from gateway_core.kube.repository import Repository

PATH = "/v1/batches"


class BatchService:
    """Batches; a foreign one is not found (§0.5)."""

    def __init__(
        self, repository: Repository, *, clock: Callable[[], datetime] = CLOCK.now
    ) -> None:
        self._repository = repository
        self._clock = clock

    async def find(self, account: str, wire_id: str) -> Object:
        """Return the Batch. NotFound, Unavailable."""
        try:
            obj = await self._repository.find(BATCHES, account, wire_id)
        except NotFound:
            raise _unknown(wire_id) from None
        if not _is_shown(obj):
            raise _unknown(wire_id)
        return obj

    async def list(self, account: str, query: PageQuery) -> tuple[list[Batch], bool]:
        """Return a page of the account's Batches; and whether there are more.

        Raises NotFound or Unavailable.
        """
        after = None
        if query.after is not None:
            after = find_position(await self._find_cursor(account, query.after))
        names, has_more = await self._repository.list_names(
            BATCHES, account, after=after, limit=query.limit, order=query.order
        )
        return await self._repository.show_each(BATCHES, account, names, render_batch), has_more

    async def cancel(self, account: str, wire_id: str) -> Object:
        """Return the Batch, cancelled now or before.

        Raises NotFound, Conflict, Unavailable or OutcomeUnknown.
        """

        def decide(obj: Object) -> Mapping[str, Any] | None:
            if not _is_shown(obj):
                raise _unknown(wire_id)
            status = read_status(obj)
            if status in ("cancelling", "cancelled"):
                return None
            if has_ended(obj):
                raise Conflict(
                    f"Batch {name_to_id(obj['metadata']['name'])} is already {status}.",
                    code="batch_state_conflict",
                )
            moment = format_time(self._clock())
            return {
                "metadata": {"annotations": {CANCELLED_AT_ANNOTATION: moment}},
                "spec": {"desiredState": "Cancelled"},
            }

        try:
            return await self._repository.change(BATCHES, account, wire_id, decide)
        except NotFound:
            raise _unknown(wire_id) from None

    async def _find_cursor(self, account: str, wire_id: str) -> Object:
        """Return the Batch that a cursor names, also one that is being deleted. NotFound."""
        try:
            return await self._repository.find(BATCHES, account, wire_id)
        except NotFound:
            raise _unknown(wire_id, param="after") from None


def _is_shown(obj: Object) -> bool:
    return not obj["metadata"].get("deletionTimestamp")


def _unknown(wire_id: str, *, param: str | None = None) -> NotFound:
    """No such Batch, or another account's (§0.5)."""
    return unknown(BATCH_PREFIX, wire_id, param=param)
