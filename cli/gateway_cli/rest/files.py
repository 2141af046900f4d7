"""`gatewayctl files`: the Files of an account, with an API key."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway_cli import options as opt
from gateway_cli.commands import rest_command
from gateway_cli.output import Column, Document, Done, print_note, show_done, show_list, show_one
from gateway_cli.rest.access import make_path, take_first
from gateway_cli.rest.errors import RestError
from gateway_cli.session import confirm
from gateway_core.api.ids import FILE_PREFIX

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi


def read_moment(field: str) -> Callable[[Document], str | None]:
    """Return a reader that shows a field with epoch seconds as a UTC time."""

    def show(document: Document) -> str | None:
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

FileId = Annotated[str, opt.id_of(FILE_PREFIX, "File")]
Source = Annotated[
    Path, typer.Argument(help="The file to bring up.", exists=True, dir_okay=False, readable=True)
]
Purpose = Annotated[Literal["user_data", "batch"], typer.Option(help="The File's purpose.")]
Name = Annotated[str | None, typer.Option(help="The File's name; default: the source's.")]

app = typer.Typer(add_completion=False, cls=opt.CommandGroup, no_args_is_help=True)


@rest_command(app, show_one(COLUMNS), interrupted=RESUMABLE)
async def upload(
    api: "RestApi",
    source: Source,
    purpose: Purpose = "user_data",
    name: Name = None,
    expires_after: opt.Lifetime = None,
) -> Document:
    """Upload a file; more than 8 MiB in concurrent parts.

    The same command resumes an interrupted upload within the hour.
    """
    from gateway_cli.rest.uploading import Uploader

    return await Uploader(api).upload(source, purpose, name, expires_after)


@rest_command(app, show_list(COLUMNS, "files"), name="list")
async def list_files(
    api: "RestApi",
    purpose: Annotated[
        Literal["user_data", "batch", "batch_output"] | None,
        typer.Option(help="Only of this purpose."),
    ] = None,
    limit: opt.MostResults = 100,
) -> list[Document]:
    """List the account's Files, newest first."""
    query = f"&purpose={purpose}" if purpose else ""
    return await take_first(api.list_items("/v1/files", PAGE, query), limit)


@rest_command(app, show_one(COLUMNS))
async def get(api: "RestApi", file_id: FileId) -> Document:
    """Show a File."""
    return await api.get(make_path("v1/files", file_id))


@rest_command(app, show_done, interrupted="the same command goes on with it")
async def download(
    api: "RestApi",
    file_id: FileId,
    # not a Path, which forgets the / at the end
    to: Annotated[
        str,
        typer.Option(
            metavar="<path>",
            help="A file or a folder; a name that ends in / is a folder, created if missing."
            " Default: the File's name in the current folder.",
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> Done:
    """Download a File. The same command resumes an interrupted download."""
    file = await fetch(api, file_id, Path(to), force=force, is_folder=to.endswith("/"))
    return f"{file['path']} written ({file['bytes']:,} bytes)", file


@rest_command(app, show_done)
async def delete(api: "RestApi", file_id: FileId, yes: opt.Yes = False) -> Done:
    """Delete a File. A running batch can still read it."""
    confirm(f"Delete {file_id}?", yes)
    return f"file {file_id} deleted", await api.delete(make_path("v1/files", file_id))


async def fetch(
    api: "RestApi",
    file_id: str,
    to: Path,
    *,
    force: bool,
    name: str | None = None,
    is_folder: bool = False,
) -> dict[str, Any]:
    """Download a File into the folder or file `to`; return its object with its `path` there.

    `is_folder`: `to` is a folder, which is created if it is missing.

    Raises:
        RestError: it cannot be had, or there is such a file and not `force`.
    """
    from gateway_cli.rest.transfers import fetch_file

    file = await api.get(make_path("v1/files", file_id))
    # the name is the uploader's choice, and must not lead out of the folder
    own = name or PurePath(str(file["filename"])).name or file_id
    path = to
    if is_folder or await asyncio.to_thread(path.is_dir):
        path = path / own
    if not force and await asyncio.to_thread(path.exists):
        raise RestError(f"{path} exists already: --force replaces it")
    await fetch_file(api, file, path, print_note)
    return {**file, "path": str(path)}
