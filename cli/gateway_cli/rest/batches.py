"""`gatewayctl batches`: Batches of moderations, with an API key."""

import asyncio
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.commands import rest_command
from gateway_cli.output import Column, Document, Done, print_note, show_done, show_list, show_one
from gateway_cli.rest.access import (
    ENDED,
    Body,
    describe_expiry,
    follow,
    make_path,
    show_status,
    take_first,
)
from gateway_cli.rest.errors import RestError
from gateway_cli.rest.files import fetch, read_moment
from gateway_core.api.ids import BATCH_PREFIX, FILE_PREFIX, head_of, read_id

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi

COLUMNS = (
    Column("Id", "id"),
    Column("Status", "status"),
    Column("Total", lambda batch: batch["request_counts"]["total"], right=True),
    Column("Completed", lambda batch: batch["request_counts"]["completed"], right=True),
    Column("Failed", lambda batch: batch["request_counts"]["failed"], right=True),
    Column("Created", read_moment("created_at")),
    Column("Input", "input_file_id"),
)


def _list_errors(batch: Any) -> str | None:
    listed = (batch.get("errors") or {}).get("data") or []
    return "\n".join(map(_describe_error, listed)) or None


def _describe_error(error: Any) -> str:
    number, message = error.get("line"), str(error["message"])
    # most messages of a line name it already
    return f"Line {number}: {message}" if number and not message.startswith("Line ") else message


def _read_end(batch: Any) -> str | None:
    times = (read_moment(f"{status}_at")(batch) for status in ENDED)
    return next(filter(None, times), None)


LINES = (
    *COLUMNS,
    Column("Model", "model"),
    Column("Ended", _read_end),
    Column("Output", "output_file_id"),
    Column("Errors", "error_file_id"),
    Column("What is wrong", _list_errors),
    Column("Metadata", "metadata"),
    Column("Files", "files"),
    Column("Idempotency-Key", "idempotency_key"),
)
PATH, PAGE = "/v1/batches", 100
DEFAULT_WAIT_SECONDS = 24 * 3600
PAUSES = 0.5, 5.0
"""The counts of a batch change every few seconds."""
GOES_ON = "the batch goes on; `gatewayctl batches wait` follows it again"

BatchId = Annotated[str, opt.id_of(BATCH_PREFIX, "Batch")]

app = typer.Typer(add_completion=False, cls=opt.CommandGroup, no_args_is_help=True)


@rest_command(app, show_status(LINES), interrupted=GOES_ON)
async def create(
    api: "RestApi",
    source: Annotated[
        str,
        typer.Argument(
            help="A JSONL file, which is brought up first, or a File's id, file-…", metavar="INPUT"
        ),
    ],
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Metadata of the batch; may be repeated."),
    ] = None,
    output_expires_after: opt.Lifetime = None,
    idempotency_key: opt.IdempotencyKey = None,
    wait: opt.Wait = False,
    patience: opt.Timeout = DEFAULT_WAIT_SECONDS,
    download: opt.Download = None,
) -> tuple[Body, bool]:
    """Run the requests of a JSONL file. With --wait or --download, wait for the end.

    The Idempotency-Key is printed: giving it again after a lost connection creates no second
    batch, and no second File of the same local file.
    """
    body: Body = {"endpoint": "/v1/moderations", "completion_window": "24h"}
    if metadata:
        body["metadata"] = dict(opt.parse_pair(entry, "--metadata") for entry in metadata)
    if output_expires_after:
        body["output_expires_after"] = describe_expiry(output_expires_after)
    key = idempotency_key or str(uuid.uuid4())
    print_note(f"Idempotency-Key: {key}")
    body["input_file_id"] = await _find_input(api, source, key)
    batch = await api.create(PATH, body, key)
    follows = wait or download is not None
    if follows:
        print_note(f"batch {batch['id']} created")
        batch = await _follow(api, batch["id"], patience, download)
    return {**batch, "idempotency_key": key}, follows


@rest_command(app, show_list(COLUMNS, "batches"), name="list")
async def list_batches(api: "RestApi", limit: opt.MostResults = 20) -> list[Body]:
    """List the account's Batches, newest first."""
    return await take_first(api.list_items(PATH, PAGE), limit)


@rest_command(app, show_status(LINES))
async def get(api: "RestApi", batch_id: BatchId) -> tuple[Body, bool]:
    """Show a batch. Exit code 0: completed, 1: ended otherwise, 3: running."""
    return await api.get(_path(batch_id)), True


@rest_command(app, show_status(LINES), interrupted=GOES_ON)
async def wait(
    api: "RestApi",
    batch_id: BatchId,
    patience: opt.Timeout = DEFAULT_WAIT_SECONDS,
    download: opt.Download = None,
) -> tuple[Body, bool]:
    """Wait for the end of a batch. Exit code 0: completed, 1: otherwise, 3: after --timeout."""
    return await _follow(api, batch_id, patience, download), True


@rest_command(app, show_done)
async def cancel(api: "RestApi", batch_id: BatchId) -> Done:
    """Cancel a batch: running requests end, the rest are not made; results are kept."""
    batch = await api.post(f"{_path(batch_id)}/cancel", {})
    until = ": its running requests end" if batch["status"] == "cancelling" else ""
    return f"batch {batch_id} cancelled{until}", batch


@rest_command(app, show_one(LINES), interrupted="the same command goes on with it")
async def download(
    api: "RestApi",
    batch_id: BatchId,
    to: Annotated[
        Path, typer.Option(file_okay=False, help="A folder, which is created if missing.")
    ] = Path(),
) -> Document:
    """Download the output and the errors of an ended batch."""
    batch = await api.get(_path(batch_id))
    if batch["status"] not in ENDED:
        raise RestError(f"{batch_id} is {batch['status']}: `batches wait` follows it to its end")
    return await _fetch_results(api, batch, to)


def _path(batch_id: str) -> str:
    return make_path("v1/batches", batch_id)


async def _find_input(api: "RestApi", source: str, key: str) -> str:
    """Return the id of the File that `source` names or becomes."""
    from gateway_cli.rest.uploading import Uploader

    path = Path(source)
    if await asyncio.to_thread(path.is_file):
        file = await Uploader(api).upload(path, "batch", once=f"batch {key}")
        print_note(f"file {file['id']} created from {path}")
        return str(file["id"])
    file_id = read_id(FILE_PREFIX, source)
    if not file_id.startswith(head_of(FILE_PREFIX)):
        raise typer.BadParameter(f"{source} is neither a file here nor a File's id (file-…)")
    return file_id


async def _follow(api: "RestApi", batch_id: str, seconds: int, folder: Path | None) -> Body:
    """Return the batch at its end, or as it is after `seconds`; with `files` if it was fetched."""
    batch = await follow(api, _path(batch_id), seconds, PAUSES, _describe_counts)
    if folder is None or batch["status"] not in ENDED:
        return batch
    return await _fetch_results(api, batch, folder)


def _describe_counts(batch: Body) -> str:
    counts = batch["request_counts"]
    return f"{batch['status']}, {counts['completed'] + counts['failed']} of {counts['total']}"


async def _fetch_results(api: "RestApi", batch: Body, folder: Path) -> Body:
    """Return the batch with `files`: the paths of its output and errors in the folder."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    files = []
    for member, ending in (("output_file_id", "output"), ("error_file_id", "error")):
        if batch[member]:
            name = f"{batch['id']}_{ending}.jsonl"
            file = await fetch(api, batch[member], folder, force=True, name=name)
            files.append(file["path"])
    return {**batch, "files": files}
