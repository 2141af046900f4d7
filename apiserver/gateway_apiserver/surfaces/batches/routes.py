"""`/v1/batches`: create, list, retrieve, cancel (contract §5)."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from gateway_apiserver.responses import Response, to_json
from gateway_apiserver.routing import Call, Docs, RouteTable
from gateway_apiserver.surfaces.batches.creation import PATH, BatchCreation
from gateway_apiserver.surfaces.batches.models import Batch, BatchCreate
from gateway_apiserver.surfaces.bodies import read_object
from gateway_apiserver.surfaces.ids import unknown
from gateway_apiserver.surfaces.models import Page, PageQuery
from gateway_apiserver.surfaces.validation import read_openai_query
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
from gateway_core.api.errors import Conflict, NotFound
from gateway_core.api.ids import BATCH_PREFIX, CANCELLED_AT_ANNOTATION, name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.times import format_time
from gateway_core.batches.rendering import has_ended, read_status, render_batch
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.lists import find_position, wrap_page
from gateway_core.kube.repository import BATCHES, Repository


class BatchRoutes:
    """All of a surface's endpoints."""

    def __init__(
        self,
        creation: BatchCreation,
        repository: Repository,
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._creation = creation
        self._repository = repository
        self._clock = clock

    def add_to(self, table: RouteTable) -> None:
        """Add the routes; creates are paid calls and pass `admission`."""
        one, cancel = PATH + "/{batch_id}", PATH + "/{batch_id}/cancel"
        docs = Docs(
            name="createBatch",
            summary="Run the moderations of a File",
            response=Batch,
            body=BatchCreate,
            makes="Batch",
            also=(404, 409, 504),
        )
        table.add("POST", PATH, self.create, "batch_create", paid=True, docs=docs)
        docs = Docs(
            name="listBatches",
            summary="Batches, the newest first",
            response=Page[Batch],
            query=PageQuery,
            also=(404,),
        )
        table.add("GET", PATH, self.list, "batch_list", Access(), docs=docs)
        docs = Docs(name="showBatch", summary="One Batch", response=Batch)
        table.add("GET", one, self.show, "batch_read", Access(), docs=docs)
        docs = Docs(
            name="cancelBatch",
            summary="End a Batch early",
            response=Batch,
            also=(400, 409, 413, 415, 504),
        )
        table.add("POST", cancel, self.cancel, "batch_cancel", Access(Act.CREATE), docs=docs)

    async def create(self, call: Call) -> Response:
        """Make a Batch of a File; its status is `validating`."""
        return to_json(render_batch(await self._creation.create(call)))

    async def show(self, call: Call) -> Response:
        """One Batch."""
        return to_json(render_batch(await self._find(call.account, call.wire_id)))

    async def list(self, call: Call) -> Response:
        """A page of the account's Batches, the newest first."""
        account = call.account
        query = read_openai_query(PageQuery, call.query)
        after = None
        if query.after is not None:
            after = find_position(await self._find_cursor(account, query.after))
        names, has_more = await self._repository.list_names(
            BATCHES, account, after=after, limit=query.limit, order=query.order
        )
        page = await self._repository.show_each(BATCHES, account, names, render_batch)
        return to_json(wrap_page(page, has_more))

    async def cancel(self, call: Call) -> Response:
        """End a Batch early; one that was cancelled before is shown."""
        await read_object(call, optional=True)
        wire_id = call.wire_id

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
            obj = await self._repository.change(BATCHES, call.account, wire_id, decide)
        except NotFound:
            raise _unknown(wire_id) from None
        return to_json(render_batch(obj))

    async def _find_cursor(self, account: str, wire_id: str) -> Object:
        """The Batch of a cursor; one whose deletion has begun is one still. NotFound."""
        try:
            return await self._repository.find(BATCHES, account, wire_id)
        except NotFound:
            raise _unknown(wire_id, param="after") from None

    async def _find(self, account: str, wire_id: str) -> Object:
        try:
            obj = await self._repository.find(BATCHES, account, wire_id)
        except NotFound:
            raise _unknown(wire_id) from None
        if not _is_shown(obj):
            raise _unknown(wire_id)
        return obj


def _is_shown(obj: Object) -> bool:
    return not obj["metadata"].get("deletionTimestamp")


def _unknown(wire_id: str, *, param: str | None = None) -> NotFound:
    """No such Batch, or another account's (§0.5)."""
    return unknown(BATCH_PREFIX, wire_id, param=param)
