"""`gatewayctl tasks create|get|wait`: tasks with an API key, as any user makes them."""

import asyncio
import json
import sys
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway_cli.output import Column, Output, print_note, print_one
from gateway_cli.rest.access import (
    Access,
    Action,
    BaseUrl,
    KeyFile,
    Service,
    Timeout,
    make_access,
    make_operation,
)
from gateway_cli.rest.errors import EXIT_ENDED_BADLY, EXIT_UNDER_WAY
from gateway_cli.rest.session import explained

if TYPE_CHECKING:
    from gateway_cli.rest.client import TaskApi

LINES = (
    Column("Id", "id"),
    Column("Status", "status"),
    Column("Error", "error"),
    Column("Cost (USD)", lambda task: (task.get("usage") or {}).get("cost")),
    Column("Videos", lambda task: [video["url"] for video in task.get("videos") or ()]),
    Column("Files", "files"),
    Column("Replayed", "task_replayed"),
    Column("Idempotency-Key", "idempotency_key"),
)
GOES_ON = "the task goes on; `gatewayctl tasks wait` follows it again"

TaskId = Annotated[str, typer.Argument(help="A task's id, task_…", metavar="TASK_ID")]
Download = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="Fetch the videos into this folder; made if need be."),
]
DEFAULT_WAIT_SECONDS = 900


def create(
    model: Annotated[str, typer.Option(envvar="GATEWAY_MODEL", help="The model's id.")],
    service: Service,
    base_url: BaseUrl,
    prompt: Annotated[str | None, typer.Option(help="What the video is to show.")] = None,
    image: Annotated[
        list[str] | None, typer.Option(help="URL of a reference image; may be repeated.")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Another field, its value as JSON or plain text; repeated."
        ),
    ] = None,
    input_file: Annotated[
        str | None, typer.Option("--input", help="A JSON file with the fields; - reads them.")
    ] = None,
    callback_url: Annotated[str | None, typer.Option(help="Told of the task's end.")] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="Of an earlier try: its task is found instead of another one made."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
    timeout: Timeout = DEFAULT_WAIT_SECONDS,
    download: Download = None,
    action: Action = "reference_to_video",
    key_file: KeyFile = None,
    output: Output = "table",
) -> None:
    """Make a task. With --wait or --download it is followed to its end.

    It is sent with an Idempotency-Key, which is printed: giving that again after a lost connection
    makes no second task.
    """
    access, operation = make_access(base_url, key_file), make_operation(service, action)
    body = _read_input(input_file)
    given = {"model": model, "prompt": prompt, "callback_url": callback_url}
    body |= {name: value for name, value in given.items() if value is not None}
    if image:
        body["reference_image_urls"] = image
    body |= dict(map(_read_field, field or ()))
    key = idempotency_key or str(uuid.uuid4())
    print_note(f"Idempotency-Key: {key}")

    async def run(api: "TaskApi") -> dict[str, Any]:
        accepted = await api.create(body, key)
        if not (wait or download):
            return {**accepted, "idempotency_key": key}
        print_note(f"task {accepted['id']} is accepted")
        ended = await _follow(api, accepted["id"], timeout, download)
        return {**ended, "idempotency_key": key}

    task = _on_api(access, operation, run)
    print_one(task, LINES, output)
    if wait or download:
        _exit_by(task)


def get(
    task_id: TaskId,
    service: Service,
    base_url: BaseUrl,
    action: Action = "reference_to_video",
    key_file: KeyFile = None,
    output: Output = "table",
) -> None:
    """A task as it is now. Exit code 0: completed, 1: failed, 3: under way."""
    access, operation = make_access(base_url, key_file), make_operation(service, action)
    task = _on_api(access, operation, lambda api: api.get(task_id))
    print_one(task, LINES, output)
    _exit_by(task)


def wait(
    task_id: TaskId,
    service: Service,
    base_url: BaseUrl,
    timeout: Timeout = DEFAULT_WAIT_SECONDS,
    download: Download = None,
    action: Action = "reference_to_video",
    key_file: KeyFile = None,
    output: Output = "table",
) -> None:
    """Follow a task to its end. Exit code 0: completed, 1: failed, 3: not within --timeout."""
    access, operation = make_access(base_url, key_file), make_operation(service, action)
    task = _on_api(access, operation, lambda api: _follow(api, task_id, timeout, download))
    print_one(task, LINES, output)
    _exit_by(task)


async def _follow(
    api: "TaskApi", task_id: str, seconds: int, folder: Path | None
) -> dict[str, Any]:
    """The task at its end, or as it is after `seconds`; with `files` if it was fetched."""
    from gateway_cli.rest.following import fetch_videos, wait_ended

    task = await wait_ended(api, task_id, seconds)
    if folder is None or task["status"] != "completed":
        return task
    return {**task, "files": await fetch_videos(api, task, folder)}


def _on_api(
    access: Access, operation: str, work: Callable[["TaskApi"], Coroutine[Any, Any, dict[str, Any]]]
) -> dict[str, Any]:
    from gateway_cli.rest.client import TaskApi

    async def run() -> dict[str, Any]:
        async with TaskApi(access.base_url, access.key, operation, print_note) as api:
            return await work(api)

    with explained(GOES_ON):
        return asyncio.run(run())


def _exit_by(task: dict[str, Any]) -> None:
    match task["status"]:
        case "completed":
            return
        case "failed":
            raise typer.Exit(EXIT_ENDED_BADLY)
    raise typer.Exit(EXIT_UNDER_WAY)


def _read_input(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    try:
        found = json.loads(sys.stdin.read() if name == "-" else Path(name).read_text())
    except OSError as error:
        raise typer.BadParameter(f"--input {name}: {error.strerror}") from error
    except ValueError as error:
        raise typer.BadParameter(f"--input {name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"--input {name} must hold a JSON object")
    return found


def _read_field(entry: str) -> tuple[str, Any]:
    name, equals, text = entry.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"--field {entry!r} is written NAME=VALUE")
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text
