"""`gatewayctl files`: the Files of an account, with an API key."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway_cli import options as opt
from gateway_cli.output import Column, Output, print_done, print_list, print_note, print_one
from gateway_cli.rest.access import Access, make_access, make_path, on_api, take_first
from gateway_cli.rest.errors import RestError
from gateway_cli.session import confirm

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi

Document = dict[str, Any]


def read_moment(field: str) -> Callable[[Any], str | None]:
    """A reader of a field with a time of the API, in epoch seconds, which shows it as UTC."""

    def show(document: Any) -> str | None:
        seconds = document.get(field)
        if seconds is None:
            return None
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")

    return show


COLUMNS = (
    Column("Id", "id"),
    Column("Purpose", "purpose"),
    Column("Bytes", "bytes", right=True),
    Column("Created", read_moment("created_at")),
    Column("Expires", read_moment("expires_at")),
    Column("Filename", "filename"),
)
PAGE = 1000
RESUMABLE = "what is up so far is kept: the same command goes on with it within the hour"

Purpose = Literal["user_data", "batch"]
FileId = Annotated[str, typer.Argument(help="A File's id, file-…", metavar="FILE_ID")]
Source = Annotated[
    Path, typer.Argument(help="The file to bring up.", exists=True, dir_okay=False, readable=True)
]
PurposeOption = Annotated[Purpose, typer.Option(help="The File's purpose.")]
Name = Annotated[str | None, typer.Option(help="The File's name; default: the source's.")]
ExpiresAfter = Annotated[
    int | None,
    typer.Option(
        parser=opt.parse_period,
        metavar="PERIOD",
        help="Lifetime of the File, 1h to 30d. Default: user_data unlimited, batch 30 days.",
    ),
]

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
def upload(
    source: Source,
    base_url: opt.BaseUrl,
    purpose: PurposeOption = "user_data",
    name: Name = None,
    expires_after: ExpiresAfter = None,
    key_file: opt.KeyFile = None,
    output: Output = "table",
) -> None:
    """Upload a file; more than 8 MiB in concurrent parts.

    The same command resumes an interrupted upload within the hour.
    """
    access = make_access(base_url, key_file)
    found = upload_file(access, source, purpose, name, expires_after)
    print_one(found, COLUMNS, output)


@app.command("list")
def list_files(
    base_url: opt.BaseUrl,
    purpose: Annotated[
        Literal["user_data", "batch", "batch_output"] | None,
        typer.Option(help="Only of this purpose."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Maximum number of results, newest first.")
    ] = 100,
    key_file: opt.KeyFile = None,
    output: Output = "table",
) -> None:
    """List the account's Files, newest first."""

    query = f"&purpose={purpose}" if purpose else ""

    async def run(api: "RestApi") -> list[Document]:
        return await take_first(api.list_items("/v1/files", PAGE, query), limit)

    print_list(on_api(make_access(base_url, key_file), run), COLUMNS, output, noun="files")


@app.command()
def get(
    file_id: FileId, base_url: opt.BaseUrl, key_file: opt.KeyFile = None, output: Output = "table"
) -> None:
    """Show a File."""
    access = make_access(base_url, key_file)
    print_one(on_api(access, lambda api: api.get(make_path("v1/files", file_id))), COLUMNS, output)


@app.command()
def download(
    file_id: FileId,
    base_url: opt.BaseUrl,
    to: Annotated[
        Path | None,
        typer.Option(help="A file or a folder; default: the File's name in the current folder."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    key_file: opt.KeyFile = None,
    output: Output = "table",
) -> None:
    """Download a File. The same command resumes an interrupted download."""

    async def run(api: "RestApi") -> Document:
        return await fetch(api, file_id, to, force=force)

    found = on_api(make_access(base_url, key_file), run, "the same command goes on with it")
    print_done(f"{found['path']} ({found['bytes']:,} bytes)", found, output)


@app.command()
def delete(
    file_id: FileId,
    base_url: opt.BaseUrl,
    yes: opt.Yes = False,
    key_file: opt.KeyFile = None,
    output: Output = "table",
) -> None:
    """Delete a File. A running batch can still read it."""
    access = make_access(base_url, key_file)
    confirm(f"Delete {file_id}?", yes)
    deleted = on_api(access, lambda api: api.delete(make_path("v1/files", file_id)))
    print_done(f"{file_id} is deleted", deleted, output)


def upload_file(
    access: Access,
    source: Path,
    purpose: str,
    name: str | None,
    expires_after: int | None,
    *,
    in_parts: bool = False,
    once: str | None = None,
) -> Document:
    """The File that a local one has become; ends the command where it cannot.

    `once` as `Uploader.upload` has it.
    """

    async def run(api: "RestApi") -> Document:
        from gateway_cli.rest.uploading import Uploader

        uploader = Uploader(api, access, print_note)
        return await uploader.upload(
            source, purpose, name, expires_after, in_parts=in_parts, once=once
        )

    return on_api(access, run, RESUMABLE)


async def fetch(
    api: "RestApi", file_id: str, to: Path | None, *, force: bool, name: str | None = None
) -> Document:
    """The File's object with the `path` that its bytes are at, in the folder or file `to`.

    Raises:
        RestError: it cannot be had, or there is such a file and not `force`.
    """
    from gateway_cli.rest.transfers import fetch_file

    file = await api.get(make_path("v1/files", file_id))
    # the name is the uploader's choice, and must not lead out of the folder
    own = name or PurePath(str(file["filename"])).name or file_id
    path = to or Path()
    if await asyncio.to_thread(path.is_dir):
        path = path / own
    if not force and await asyncio.to_thread(path.exists):
        raise RestError(f"{path} is there: --force replaces it")
    await fetch_file(api, file, path, print_note)
    return {**file, "path": str(path)}
