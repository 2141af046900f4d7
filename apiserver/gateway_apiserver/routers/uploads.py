"""`/v1/uploads`: create, complete, cancel; there is no list and no GET (contract §4).

`surfaces.uploads.streams` has the operation that takes bytes.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from gateway_apiserver.access import ByCaller, IdempotencyKey, mark_replayed, provided, requires
from gateway_apiserver.routes import GatewayRoute, UnlistedOperation
from gateway_apiserver.surfaces.files.models import render_file
from gateway_apiserver.surfaces.models import IGNORED, Ignored
from gateway_apiserver.surfaces.uploads.models import (
    Upload,
    UploadComplete,
    UploadCreate,
    render_upload,
)
from gateway_apiserver.surfaces.uploads.service import PATH, UploadService
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access

creation = APIRouter(prefix=PATH, route_class=UnlistedOperation, tags=["Uploads"])
router = APIRouter(prefix=f"{PATH}/{{upload_id}}", route_class=GatewayRoute, tags=["Uploads"])

Uploads = Annotated[UploadService, Depends(provided(UploadService))]


@creation.post("", operation_id="createUpload", summary="Create an Upload, for a file in parts")
@requires(Access(Act.CREATE, creates=True, rate="storage"), "uploads_create")
async def create_upload(
    wanted: UploadCreate,
    caller: ByCaller,
    key: IdempotencyKey,
    uploads: Uploads,
    response: Response,
) -> Upload:
    """Create an Upload, and reserve its bytes."""
    wanted.check_size()
    obj, is_replayed = await uploads.create(caller, key, wanted)
    mark_replayed(response, is_replayed=is_replayed)
    return render_upload(obj)


@router.post(
    "/complete",
    operation_id="completeUpload",
    summary="Complete an Upload",
    responses={409: {}, 504: {}},
)
@requires(Access(Act.CREATE, creates=True), "uploads_complete")
async def complete_upload(
    upload_id: str, wanted: UploadComplete, caller: ByCaller, uploads: Uploads
) -> Upload:
    """Make the File of an Upload's parts."""
    obj, file = await uploads.complete(caller.account, upload_id, wanted)
    return render_upload(obj, render_file(file))


@router.post(
    "/cancel",
    operation_id="cancelUpload",
    summary="Cancel an Upload",
    responses={409: {}, 504: {}},
)
@requires(Access(Act.CREATE), "uploads_cancel")
async def cancel_upload(
    upload_id: str, caller: ByCaller, uploads: Uploads, _: Ignored = IGNORED
) -> Upload:
    """Cancel an Upload. Idempotent."""
    return render_upload(await uploads.cancel(caller.account, upload_id))
