"""`gatewayctl tasks create|get|wait|history|abort`: an account's tasks, with its API key."""

import asyncio
import json
import sys
import uuid
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode, urlsplit

import typer

from gateway_cli import options as opt
from gateway_cli.commands import rest_command
from gateway_cli.output import Column, Done, print_note, show_done, show_list
from gateway_cli.rest.access import Body, follow, make_path, show_status, take_first
from gateway_cli.rest.errors import RestError
from gateway_core.api.ids import TASK_PREFIX
from gateway_core.api.money import MICROS_PER_DOLLAR, to_decimal_text
from gateway_core.failures import describe_failure

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi


def _show_cost(dollars: float | None) -> str | None:
    """Return the dollars of an answer as the other commands show them: at least two decimals."""
    return None if dollars is None else to_decimal_text(round(dollars * MICROS_PER_DOLLAR))


LINES = (
    Column("Id", "id"),
    Column("Status", "status"),
    Column("Error", "error"),
    Column("Cost (USD)", lambda task: _show_cost((task.get("usage") or {}).get("cost"))),
    Column("Videos", lambda task: [video["url"] for video in task.get("videos") or ()]),
    Column("Files", "files"),
    Column("Replayed", "task_replayed"),
    Column("Idempotency-Key", "idempotency_key"),
)
COLUMNS = (
    Column("Id", "id"),
    Column("Model", "model"),
    Column("Status", "status"),
    Column("Created", "created_at"),
    Column("Ended", "ended_at"),
    Column("Cost (USD)", lambda task: _show_cost(task.get("cost")), right=True),
    Column("Error", "error"),
)
LIST_PATH, PAGE = "/api/v1/tasks", 100
PAUSES = 0.25, 2.0
SUFFIXES = (".mp4", ".webm", ".mov")
PANEL = "With an API key, over REST (GATEWAY_BASE_URL, GATEWAY_API_KEY)"
GOES_ON = "the task goes on; `gatewayctl tasks wait` follows it again"
DEFAULT_WAIT_SECONDS = 900

Status = Literal["processing", "completed", "failed"]
TaskId = Annotated[str, opt.id_of(TASK_PREFIX, "task")]


async def create(
    api: "RestApi",
    model: Annotated[str, typer.Option(envvar="GATEWAY_MODEL", help="The model's id.")],
    service: opt.Service,
    prompt: Annotated[str | None, typer.Option(help="Description of the video.")] = None,
    image: Annotated[
        list[str] | None, typer.Option(help="URL of a reference image; may be repeated.")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Another field, with a value as JSON or plain text; may be repeated.",
        ),
    ] = None,
    input_file: Annotated[
        str | None,
        typer.Option("--input", help="A JSON file with the fields; - is standard input."),
    ] = None,
    callback_url: Annotated[
        str | None, typer.Option(help="Receives a callback when the task ends.")
    ] = None,
    idempotency_key: opt.IdempotencyKey = None,
    wait: opt.Wait = False,
    patience: opt.Timeout = DEFAULT_WAIT_SECONDS,
    download: opt.Download = None,
    action: opt.Action = "reference_to_video",
) -> tuple[Body, bool]:
    """Create a task. With --wait or --download, wait for its end.

    The Idempotency-Key is printed: giving it again after a lost connection creates no second task.
    """
    body = _read_input(input_file)
    given = {"model": model, "prompt": prompt, "callback_url": callback_url}
    body |= {name: value for name, value in given.items() if value is not None}
    if image:
        body["reference_image_urls"] = image
    body |= dict(map(_read_field, field or ()))
    key = idempotency_key or str(uuid.uuid4())
    print_note(f"Idempotency-Key: {key}")
    task = await api.create(make_path("api/v1", service, action), body, key)
    follows = wait or download is not None
    if follows:
        print_note(f"task {task['id']} created")
        path = make_path("api/v1", service, action, task["id"])
        task = await _follow(api, path, patience, download)
    return {**task, "idempotency_key": key}, follows


async def get(
    api: "RestApi",
    task_id: TaskId,
    service: opt.Service,
    action: opt.Action = "reference_to_video",
) -> tuple[Body, bool]:
    """Show a task. Exit code 0: completed, 1: failed, 3: running."""
    return await api.get(make_path("api/v1", service, action, task_id)), True


async def wait(
    api: "RestApi",
    task_id: TaskId,
    service: opt.Service,
    patience: opt.Timeout = DEFAULT_WAIT_SECONDS,
    download: opt.Download = None,
    action: opt.Action = "reference_to_video",
) -> tuple[Body, bool]:
    """Wait for the end of a task. Exit code 0: completed, 1: failed, 3: after --timeout."""
    path = make_path("api/v1", service, action, task_id)
    return await _follow(api, path, patience, download), True


async def history(
    api: "RestApi",
    status: Annotated[Status | None, typer.Option(help="Only tasks of this status.")] = None,
    model: Annotated[str | None, typer.Option(help="Only tasks of this model.")] = None,
    limit: opt.MostResults = 20,
) -> list[Body]:
    """List the account's tasks of the last 30 days, newest first."""
    wanted = {"status": status, "model": model}
    query = urlencode({name: value for name, value in wanted.items() if value})
    return await take_first(api.list_items(LIST_PATH, PAGE, f"&{query}" if query else ""), limit)


async def abort(
    api: "RestApi",
    task_id: TaskId,
    service: opt.Service,
    action: opt.Action = "reference_to_video",
) -> Done:
    """Cancel a task of the account for good; what was not billed is released."""
    task = await api.post(make_path("api/v1", service, action, task_id, "cancel"), {})
    until = ": it fails once its provider has stopped" if task["status"] == "processing" else ""
    return f"task {task_id} cancelled{until}", task


def add_commands(app: typer.Typer) -> None:
    """Add the commands to the group that has the admins' commands for tasks."""
    rest_command(app, show_list(COLUMNS, "tasks"), rich_help_panel=PANEL)(history)
    rest_command(app, show_done, rich_help_panel=PANEL)(abort)
    for function in (create, get, wait):
        rest_command(app, show_status(LINES), interrupted=GOES_ON, rich_help_panel=PANEL)(function)


async def _follow(api: "RestApi", path: str, seconds: int, folder: Path | None) -> Body:
    """Return the task at its end, or as it is after `seconds`; with `files` if it was fetched."""
    task = await follow(api, path, seconds, PAUSES)
    if folder is None or task["status"] != "completed":
        return task
    return {**task, "files": await _fetch_videos(api, task, folder)}


async def _fetch_videos(api: "RestApi", task: Body, folder: Path) -> list[str]:
    """Return the paths of the task's videos in `folder`, which is created if it is missing.

    Raises:
        RestError: one cannot be had or written; those before it are there.
    """
    from gateway_cli.rest.transfers import open_bars

    try:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    except OSError as error:
        raise RestError(f"{folder} cannot be made: {error.strerror}") from error
    files = []
    with open_bars() as progress:
        for number, video in enumerate(task["videos"], 1):
            suffix = PurePosixPath(urlsplit(video["url"]).path).suffix
            suffix = suffix if suffix in SUFFIXES else ".mp4"
            path = folder / f"{task['id']}-{number}{suffix}"
            row = progress.add_task(path.name, total=None)

            def show(here: int, total: int, row: Any = row) -> None:
                progress.update(row, completed=here, total=total or None)

            await api.download(video["url"], path, show)
            files.append(str(path))
    return files


def _read_input(name: str | None) -> Body:
    if name is None:
        return {}
    try:
        found = json.loads(sys.stdin.read() if name == "-" else Path(name).read_text())
    except OSError as error:
        raise typer.BadParameter(f"--input {name}: {error.strerror}") from error
    except ValueError as error:
        raise typer.BadParameter(f"--input {name}: {describe_failure(error)}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"--input {name} must hold a JSON object")
    return found


def _read_field(entry: str) -> tuple[str, Any]:
    name, text = opt.parse_pair(entry, "--field")
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text
