"""`/api/v1/files/prepare` and `/confirm` (contract §2.5); the first counts as a create.

`surfaces.temporary_files.creation` has the create, whose body may be large.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from gateway_apiserver.access import ByCaller, provided, requires
from gateway_apiserver.routes import GatewayRoute
from gateway_apiserver.surfaces.temporary_files.models import (
    PreparedFile,
    TemporaryFile,
    TemporaryFileConfirm,
    TemporaryFilePrepare,
)
from gateway_apiserver.surfaces.temporary_files.objects import CREATE_PATH
from gateway_apiserver.surfaces.temporary_files.puts import FilePuts
from gateway_apiserver.surfaces.validation import read_idempotency_key
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access


async def check_idempotency_key(request: Request) -> None:
    """Raise InvalidRequest for a malformed key, though nothing is repeated by a good one."""
    read_idempotency_key(request.scope["headers"])


router = APIRouter(
    prefix=CREATE_PATH,
    route_class=GatewayRoute,
    tags=["Temporary files"],
    dependencies=[Depends(check_idempotency_key)],
)

Puts = Annotated[FilePuts, Depends(provided(FilePuts))]


@router.post(
    "/prepare",
    status_code=201,
    operation_id="prepareTemporaryFile",
    summary="Create an upload URL",
)
@requires(Access(Act.CREATE, creates=True, rate="storage"), "temporary_files")
async def prepare_file(wanted: TemporaryFilePrepare, caller: ByCaller, puts: Puts) -> PreparedFile:
    """Issue a URL to put a file at; its claim is kept while it can be put or confirmed."""
    return await puts.prepare(caller.account, wanted)


@router.post(
    "/confirm",
    status_code=201,
    operation_id="confirmTemporaryFile",
    summary="Create the file that was uploaded",
    responses={404: {}, 409: {}, 504: {}},
)
@requires(Access(Act.CREATE, creates=True), "temporary_files")
async def confirm_file(wanted: TemporaryFileConfirm, caller: ByCaller, puts: Puts) -> TemporaryFile:
    """Make a file of the bytes that were put. Idempotent."""
    return await puts.confirm(caller, wanted.signed_id)
