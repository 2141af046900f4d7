"""`gatewayctl uploads`: Uploads in parts, with an API key."""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway_cli import options as opt
from gateway_cli.commands import rest_command
from gateway_cli.output import Column, Document, Done, Output, print_list, show_done, show_one
from gateway_cli.rest.access import make_path
from gateway_cli.rest.files import COLUMNS, RESUMABLE, Name, Purpose, Source, read_moment
from gateway_core.api.ids import UPLOAD_PREFIX

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi

PENDING = (
    Column("Id", "id"),
    Column("Source", "source"),
    Column("Purpose", "purpose"),
    Column("Bytes", "bytes", right=True),
    Column("Parts", lambda upload: f"{upload['parts_there']} of {upload['parts']}", right=True),
    Column("Expires", read_moment("expires_at")),
    Column("Gateway", "base_url"),
)

app = typer.Typer(add_completion=False, cls=opt.CommandGroup, no_args_is_help=True)


@rest_command(app, show_one(COLUMNS), interrupted=RESUMABLE)
async def send(
    api: "RestApi",
    source: Source,
    purpose: Purpose = "user_data",
    name: Name = None,
    expires_after: opt.Lifetime = None,
) -> Document:
    """Upload a file in parts, at any size; `files upload` does this for large files.

    The same command resumes an interrupted upload within the hour.
    """
    from gateway_cli.rest.uploading import Uploader

    return await Uploader(api).upload(source, purpose, name, expires_after, in_parts=True)


@app.command("list")
def list_pending(output: Output = "table") -> None:
    """List interrupted Uploads of this machine that can be resumed."""
    from gateway_cli.rest import uploading

    found = [state.describe() for state in uploading.list_pending()]
    print_list(found, PENDING, output, noun="interrupted uploads")


@rest_command(app, show_done)
async def cancel(
    api: "RestApi",
    upload_id: Annotated[str, opt.id_of(UPLOAD_PREFIX, "Upload")],
) -> Done:
    """Cancel an Upload: delete its parts and release its storage."""
    from gateway_cli.rest import uploading

    cancelled = await api.post(make_path("v1/uploads", upload_id, "cancel"), {})
    for state in uploading.list_pending():
        if state.upload_id == upload_id:
            state.remove()
    return f"upload {upload_id} cancelled", cancelled
