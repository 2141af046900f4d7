"""`/v1/files` without their bytes (contract §3). None is counted in the rate (§12.1).

`surfaces.files.streams` has the operations that take or send bytes.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from gateway_apiserver.access import ByCaller, provided, requires
from gateway_apiserver.routes import GatewayRoute
from gateway_apiserver.surfaces.files.deletion import FileDeletion
from gateway_apiserver.surfaces.files.finder import FileFinder, read_found
from gateway_apiserver.surfaces.files.models import DeletedFile, File, FileQuery, render_file
from gateway_apiserver.surfaces.models import Page
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access

router = APIRouter(prefix="/v1/files", route_class=GatewayRoute, tags=["Files"])

Finder = Annotated[FileFinder, Depends(provided(FileFinder))]
Deletion = Annotated[FileDeletion, Depends(provided(FileDeletion))]


@router.get("", operation_id="listFiles", summary="List files")
@requires(Access(), "files_list")
async def list_files(
    query: Annotated[FileQuery, Query()], caller: ByCaller, finder: Finder
) -> Page[File]:
    """List a page of the account's files."""
    records, has_more = await finder.list_files(caller.account, query)
    return Page[File].of([render_file(record) for record in records], has_more=has_more)


@router.get("/{file_id}", operation_id="showFile", summary="Show a file")
@requires(Access(), "files_read")
async def show_file(file_id: str, caller: ByCaller, finder: Finder) -> File:
    """Show one file without its bytes."""
    return render_file(read_found(await finder.find(caller.account, file_id)))


@router.delete(
    "/{file_id}", operation_id="deleteFile", summary="Delete a file", responses={504: {}}
)
@requires(Access(Act.CREATE), "files_delete")
async def delete_file(file_id: str, caller: ByCaller, deletion: Deletion) -> DeletedFile:
    """Delete a file."""
    await deletion.delete(caller.account, file_id)
    return DeletedFile(id=file_id, object="file", deleted=True)
