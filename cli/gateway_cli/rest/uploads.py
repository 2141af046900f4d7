"""`gatewayctl uploads`: Uploads in parts, with an API key."""

from typing import Annotated

import typer

from gateway_cli import options as opt
from gateway_cli.output import Column, Output, print_done, print_list, print_one
from gateway_cli.rest.access import make_access, make_path, on_api
from gateway_cli.rest.files import (
    COLUMNS,
    ExpiresAfter,
    Name,
    PurposeOption,
    Source,
    read_moment,
    upload_file,
)

PENDING = (
    Column("Id", "id"),
    Column("Source", "source"),
    Column("Purpose", "purpose"),
    Column("Bytes", "bytes", right=True),
    Column("Parts", lambda upload: f"{upload['parts_there']} of {upload['parts']}", right=True),
    Column("Expires", read_moment("expires_at")),
    Column("Gateway", "base_url"),
)

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
def send(
    source: Source,
    base_url: opt.BaseUrl,
    purpose: PurposeOption = "user_data",
    name: Name = None,
    expires_after: ExpiresAfter = None,
    key_file: opt.KeyFile = None,
    output: Output = "table",
) -> None:
    """Upload a file in parts, at any size; `files upload` does this for large files.

    The same command resumes an interrupted upload within the hour.
    """
    access = make_access(base_url, key_file)
    found = upload_file(access, source, purpose, name, expires_after, in_parts=True)
    print_one(found, COLUMNS, output)


@app.command("list")
def list_pending(output: Output = "table") -> None:
    """List interrupted Uploads of this machine that can be resumed."""
    from gateway_cli.rest.uploading import list_states

    found = [
        {
            "id": state.upload_id,
            "source": state.source,
            "purpose": state.purpose,
            "bytes": state.size,
            "parts_there": len(state.parts),
            "parts": -(-state.size // state.part_size),
            "expires_at": int(state.expires_at) or None,
            "base_url": state.base_url,
        }
        for _, state in list_states()
    ]
    print_list(found, PENDING, output, noun="interrupted uploads")


@app.command()
def cancel(
    upload_id: Annotated[str, typer.Argument(help="Its id, upload_…", metavar="UPLOAD_ID")],
    base_url: opt.BaseUrl,
    key_file: opt.KeyFile = None,
    output: Output = "table",
) -> None:
    """Cancel an Upload: delete its parts and release its storage."""
    from gateway_cli.rest.uploading import list_states

    access = make_access(base_url, key_file)
    found = on_api(access, lambda api: api.post(make_path("v1/uploads", upload_id, "cancel"), {}))
    for file, state in list_states():
        if state.upload_id == upload_id:
            file.remove()
    print_done(f"{upload_id} is cancelled", found, output)
