"""The REST API as its commands reach it: address, key, and what all of them do with errors.

The key comes from the environment or a file, never from the arguments, which others can see. The
client is imported when a command runs: help and completion do without.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import typer

from gateway_cli.options import KEY_VARIABLE
from gateway_cli.output import print_note
from gateway_cli.session import EXIT_FAILED, EXIT_UNDER_WAY, exit_on_error
from gateway_core.api.key import parse_key

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi

Body = dict[str, Any]
ENDED = ("completed", "failed", "expired", "cancelled")
"""The last statuses of tasks and batches."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Access:
    """An API, and a key of it."""

    base_url: str
    key: str = field(repr=False)

    @property
    def key_id(self) -> str:
        """The part of the key that tells it from others, and opens nothing."""
        return self.key[:11]


def make_access(base_url: str, key_file: Path | None) -> Access:
    """The API and key that the options name; a usage error where they name none."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
        raise typer.BadParameter(
            f"{base_url!r} is no address of an API: https://gateway.example.com",
            param_hint="--base-url",
        )
    return Access(base_url, _read_key(key_file))


def make_path(root: str, *parts: str) -> str:
    """The path of a resource; `parts` may come from the command line."""
    return "/".join(["", root, *(quote(part, safe="") for part in parts)])


def on_api(
    access: Access, work: Callable[["RestApi"], Awaitable[Result]], interrupted: str = ""
) -> Result:
    """Runs `work` on the API. `interrupted` is the note after Ctrl-C."""
    from gateway_cli.rest.client import RestApi

    async def run() -> Result:
        async with RestApi(access.base_url, access.key, print_note) as api:
            return await work(api)

    with exit_on_error(interrupted=interrupted):
        return asyncio.run(run())


async def poll_ended(
    read: Callable[[], Awaitable[Body]],
    seconds: float,
    pauses: tuple[float, float],
    show: Callable[[Body], None] = lambda _: None,
) -> Body:
    """The task or batch once it has ended, or as it is when `seconds` are over.

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


def exit_by_status(found: Body) -> None:
    """Ends the command with exit code 1 or 3 unless the task or batch is completed."""
    if found["status"] != "completed":
        raise typer.Exit(EXIT_FAILED if found["status"] in ENDED else EXIT_UNDER_WAY)


async def take_first(items: AsyncIterator[Result], limit: int) -> list[Result]:
    """The first `limit` of them; says so where there are more."""
    found: list[Result] = []
    async for item in items:
        if len(found) == limit:
            print_note(f"there are more than {limit}: --limit shows them")
            break
        found.append(item)
    return found


def _read_key(key_file: Path | None) -> str:
    try:
        if key_file is None:
            text = os.environ.get(KEY_VARIABLE, "")
        elif str(key_file) == "-":
            text = sys.stdin.read()
        else:
            text = key_file.read_text()
    except OSError as error:
        raise typer.BadParameter(f"--key-file {key_file}: {error.strerror}") from error
    key = text.strip()
    if not key:
        raise typer.BadParameter(f"an API key is needed: set {KEY_VARIABLE}, or give --key-file")
    if parse_key(key) is None:
        raise typer.BadParameter(
            "the API key is not well-formed (sk-, 8 characters, _, 38 characters): was it copied"
            " whole?"
        )
    return key


def describe_expiry(seconds: int | None) -> dict[str, Any]:
    """`expires_after` of a request; empty without a number of seconds."""
    return {"anchor": "created_at", "seconds": seconds} if seconds else {}
