"""`/v1/batches`: list, retrieve, cancel (contract §5).

`surfaces.batches.creation` has the create, which is a paid call.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from gateway_apiserver.access import ByCaller, provided, requires
from gateway_apiserver.routes import GatewayRoute
from gateway_apiserver.surfaces.batches.models import Batch
from gateway_apiserver.surfaces.batches.rendering import render_batch
from gateway_apiserver.surfaces.batches.service import PATH, BatchService
from gateway_apiserver.surfaces.models import IGNORED, Ignored, Page, PageQuery
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access

router = APIRouter(prefix=PATH, route_class=GatewayRoute, tags=["Batches"])

Batches = Annotated[BatchService, Depends(provided(BatchService))]


@router.get("", operation_id="listBatches", summary="List Batches, the newest first")
@requires(Access(), "batch_list")
async def list_batches(
    query: Annotated[PageQuery, Query()], caller: ByCaller, batches: Batches
) -> Page[Batch]:
    """List a page of the account's Batches."""
    shown, has_more = await batches.list(caller.account, query)
    return Page[Batch].of(shown, has_more=has_more)


@router.get("/{batch_id}", operation_id="showBatch", summary="Show a Batch")
@requires(Access(), "batch_read")
async def show_batch(batch_id: str, caller: ByCaller, batches: Batches) -> Batch:
    """Show one Batch."""
    return render_batch(await batches.find(caller.account, batch_id))


@router.post(
    "/{batch_id}/cancel",
    operation_id="cancelBatch",
    summary="Cancel a Batch",
    responses={409: {}, 504: {}},
)
@requires(Access(Act.CREATE), "batch_cancel")
async def cancel_batch(
    batch_id: str, caller: ByCaller, batches: Batches, _: Ignored = IGNORED
) -> Batch:
    """Cancel a Batch. Idempotent."""
    return render_batch(await batches.cancel(caller.account, batch_id))
