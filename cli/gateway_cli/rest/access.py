"""Parts of the commands with an API key: paths, polling to an end, exit codes, limited lists."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import typer

from gateway_cli.output import Column, Format, print_note, print_one
from gateway_cli.progress import Reporter
from gateway_cli.session import EXIT_FAILED, EXIT_UNDER_WAY

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi

Body = dict[str, Any]
ENDED = ("completed", "failed", "expired", "cancelled")
"""The last statuses of tasks and batches."""
Result = TypeVar("Result")


def make_path(root: str, *parts: str) -> str:
    """Return the path of a resource; `parts` may come from the command line."""
    return "/".join(["", root, *(quote(part, safe="") for part in parts)])


def describe_expiry(seconds: int | None) -> dict[str, Any]:
    """Return `expires_after` of a request; empty without a number of seconds."""
    return {"anchor": "created_at", "seconds": seconds} if seconds else {}


async def poll_ended(
    read: Callable[[], Awaitable[Body]],
    seconds: float,
    pauses: tuple[float, float],
    show: Callable[[Body], None] = lambda _: None,
) -> Body:
    """Return the task or batch once it has ended, or as it is when `seconds` are over.

    `pauses` are the seconds between the first two looks and, as it takes longer, the last two.
    """
    deadline = time.monotonic() + seconds
    pause, longest = pauses
    while True:
        found = await read()
        show(found)
        left = deadline - time.monotonic()
        if found["status"] in ENDED or left <= 0:
            return found
        await asyncio.sleep(min(pause, left))
        pause = min(longest, pause * 1.2)


async def follow(
    api: "RestApi",
    path: str,
    seconds: float,
    pauses: tuple[float, float],
    describe: Callable[[Body], str] = lambda _: "",
) -> Body:
    """Return the task or batch at its end, or as it is after `seconds`, with its progress shown."""
    found = await api.get(path)
    if found["status"] in ENDED or seconds <= 0:
        return found
    async with Reporter.on_stderr().stage(f"Waiting for {found['id']}") as note:
        return await poll_ended(
            lambda: api.get(path), seconds, pauses, lambda found: note(describe(found))
        )


def show_status(lines: Sequence[Column]) -> Callable[[tuple[Body, bool], Format], None]:
    """Return a printer of a task or batch, and of whether its status becomes the exit code.

    The exit code is 1 for one that ended otherwise than completed, 3 for one that is running.
    """

    def show(result: tuple[Body, bool], output: Format) -> None:
        found, decides = result
        print_one(found, lines, output)
        if decides and found["status"] != "completed":
            raise typer.Exit(EXIT_FAILED if found["status"] in ENDED else EXIT_UNDER_WAY)

    return show


async def take_first(items: AsyncIterator[Result], limit: int) -> list[Result]:
    """Return the first `limit` of them, with a note where there are more."""
    found: list[Result] = []
    async for item in items:
        if len(found) == limit:
            print_note(f"there are more than {limit}: --limit shows them")
            break
        found.append(item)
    return found
