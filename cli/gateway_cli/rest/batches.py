"""`gatewayctl batches`: Batches of moderations, with an API key."""

import asyncio
import contextlib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.output import Column, Output, print_done, print_list, print_note, print_one
from gateway_cli.progress import Reporter
from gateway_cli.rest.access import (
    ENDED,
    Access,
    describe_expiry,
    exit_by_status,
    make_access,
    make_path,
    on_api,
    poll_ended,
    take_first,
)
from gateway_cli.rest.errors import RestError
from gateway_cli.rest.files import fetch, read_moment, upload_file

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi

Document = dict[str, Any]
COLUMNS = (
    Column("Id", "id"),
    Column("Status", "status"),
    Column("Total", lambda batch: batch["request_counts"]["total"], right=True),
    Column("Completed", lambda batch: batch["request_counts"]["completed"], right=True),
    Column("Failed", lambda batch: batch["request_counts"]["failed"], right=True),
    Column("Created", read_moment("created_at")),
    Column("Input", "input_file_id"),
)


def _list_errors(batch: Any) -> list[str] | None:
    listed = (batch.get("errors") or {}).get("data") or []
    lines = [
        f"line {error['line']}: {error['message']}" if error.get("line") else error["message"]
        for error in listed
    ]
    return ["\n".join(lines)] if lines else None


LINES = (
    *COLUMNS,
    Column("Model", "model"),
    Column("Ended", lambda batch: _read_end(batch)),
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

BatchId = Annotated[str, typer.Argument(help="A Batch's id, batch_…", metavar="BATCH_ID")]
Download = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="Download its output and errors into this folder."),
]

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
def create(
    source: Annotated[
        str,
        typer.Argument(
            help="A JSONL file, which is brought up first, or a File's id, file-…", metavar="INPUT"
        ),
    ],
    base_url: opt.BaseUrl,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Metadata of the batch; may be repeated."),
    ] = None,
    output_expires_after: Annotated[
        int | None,
        typer.Option(
            parser=opt.parse_period,
            metavar="PERIOD",
            help="Lifetime of its outputs, 1h to 30d.",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            help="Key of an earlier attempt: returns its batch instead of creating another."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
    timeout: opt.Timeout = DEFAULT_WAIT_SECONDS,
    download: Download = None,
    key_file: opt.KeyFile = None,
    output: Output = "table",
) -> None:
    """Run the requests of a JSONL file. With --wait or --download, wait for the end.

    The Idempotency-Key is printed: giving it again after a lost connection creates no second
    batch, and no second File of the same local file.
    """
    access = make_access(base_url, key_file)
    body: Document = {"endpoint": "/v1/moderations", "completion_window": "24h"}
    if metadata:
        body["metadata"] = dict(opt.parse_pair(entry, "--metadata") for entry in metadata)
    if output_expires_after:
        body["output_expires_after"] = describe_expiry(output_expires_after)
    key = idempotency_key or str(uuid.uuid4())
    print_note(f"Idempotency-Key: {key}")
    body["input_file_id"] = _find_input(access, source, key)

    async def run(api: "RestApi") -> Document:
        made = await api.create(PATH, body, key)
        if wait or download:
            print_note(f"batch {made['id']} is accepted")
            made = await _follow(api, made["id"], timeout, download)
        return {**made, "idempotency_key": key}

    batch = on_api(access, run, GOES_ON)
    print_one(batch, LINES, output)
    if wait or download:
        exit_by_status(batch)


@app.command("list")
def list_batches(
    base_url: opt.BaseUrl,
    limit: Annotated[
        int, typer.Option(min=1, help="Maximum number of results, newest first.")
    ] = 20,
    key_file: opt.KeyFile = None,
    output: Output = "table",
) -> None:
    """List the account's Batches, newest first."""

    async def run(api: "RestApi") -> list[Document]:
        return await take_first(api.list_items(PATH, PAGE), limit)

    print_list(on_api(make_access(base_url, key_file), run), COLUMNS, output, noun="batches")


@app.command()
def get(
    batch_id: BatchId, base_url: opt.BaseUrl, key_file: opt.KeyFile = None, output: Output = "table"
) -> None:
    """Show a batch. Exit code 0: completed, 1: ended otherwise, 3: running."""
    batch = on_api(make_access(base_url, key_file), lambda api: api.get(_path(batch_id)))
    print_one(batch, LINES, output)
    exit_by_status(batch)


@app.command()
def wait(
    batch_id: BatchId,
    base_url: opt.BaseUrl,
    timeout: opt.Timeout = DEFAULT_WAIT_SECONDS,
    download: Download = None,
    key_file: opt.KeyFile = None,
    output: Output = "table",
) -> None:
    """Wait for the end of a batch. Exit code 0: completed, 1: otherwise, 3: after --timeout."""
    access = make_access(base_url, key_file)
    batch = on_api(access, lambda api: _follow(api, batch_id, timeout, download), GOES_ON)
    print_one(batch, LINES, output)
    exit_by_status(batch)


@app.command()
def cancel(
    batch_id: BatchId, base_url: opt.BaseUrl, key_file: opt.KeyFile = None, output: Output = "table"
) -> None:
    """Cancel a batch: running requests end, the rest are not made; results are kept."""
    access = make_access(base_url, key_file)
    batch = on_api(access, lambda api: api.post(f"{_path(batch_id)}/cancel", {}))
    print_done(f"{batch_id} is {batch['status']}", batch, output)


@app.command()
def download(
    batch_id: BatchId,
    base_url: opt.BaseUrl,
    to: Annotated[
        Path, typer.Option(file_okay=False, help="A folder, which is created if missing.")
    ] = Path(),
    key_file: opt.KeyFile = None,
    output: Output = "table",
) -> None:
    """Download the output and the errors of an ended batch."""

    async def run(api: "RestApi") -> Document:
        batch = await api.get(_path(batch_id))
        if batch["status"] not in ENDED:
            raise RestError(
                f"{batch_id} is {batch['status']}: `batches wait` follows it to its end"
            )
        return await _fetch_results(api, batch, to)

    batch = on_api(make_access(base_url, key_file), run, "the same command goes on with it")
    print_one(batch, LINES, output)


def _path(batch_id: str) -> str:
    return make_path("v1/batches", batch_id)


def _find_input(access: Access, source: str, key: str) -> str:
    path = Path(source)
    if path.is_file():
        found = upload_file(access, path, "batch", None, None, once=f"batch {key}")
        print_note(f"{path} is {found['id']}")
        return str(found["id"])
    if not source.startswith("file-"):
        raise typer.BadParameter(f"{source} is neither a file here nor a File's id (file-…)")
    return source


async def _follow(api: "RestApi", batch_id: str, seconds: int, folder: Path | None) -> Document:
    """The batch at its end, or as it is after `seconds`; with `files` if it was fetched."""
    batch = await api.get(_path(batch_id))
    if batch["status"] not in ENDED and seconds > 0:
        batch = await _wait_ended(api, batch_id, seconds)
    if folder is None or batch["status"] not in ENDED:
        return batch
    return await _fetch_results(api, batch, folder)


async def _wait_ended(api: "RestApi", batch_id: str, seconds: int) -> Document:
    """As `poll_ended`, with a bar of its requests on a terminal and lines elsewhere."""
    from gateway_cli.rest.transfers import open_bars

    async with contextlib.AsyncExitStack() as stack:
        reporter = Reporter.on_stderr()
        if not reporter.console.is_terminal:
            await stack.enter_async_context(reporter.stage(f"Waiting for {batch_id}"))
        progress = stack.enter_context(open_bars(counts=True))
        row = progress.add_task(batch_id, total=None)

        def show(batch: Document) -> None:
            counts = batch["request_counts"]
            done, total = counts["completed"] + counts["failed"], counts["total"] or None
            progress.update(row, description=batch["status"], completed=done, total=total)

        return await poll_ended(lambda: api.get(_path(batch_id)), seconds, PAUSES, show)


async def _fetch_results(api: "RestApi", batch: Document, folder: Path) -> Document:
    """The batch with `files`: the paths of what it has come to."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    files = []
    for member, ending in (("output_file_id", "output"), ("error_file_id", "error")):
        if batch[member]:
            name = f"{batch['id']}_{ending}.jsonl"
            file = await fetch(api, batch[member], folder, force=True, name=name)
            files.append(file["path"])
    return {**batch, "files": files}


def _read_end(batch: Any) -> str | None:
    for status in ENDED:
        shown = read_moment(f"{status}_at")(batch)
        if shown:
            return shown
    return None
