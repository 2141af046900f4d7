"""Runs a user's command on the REST API, and explains what goes wrong.

The client is imported when a command runs: help and completion do without.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import typer

from gateway_cli.output import print_error, print_note
from gateway_cli.rest.access import Access
from gateway_cli.rest.errors import RestError

if TYPE_CHECKING:
    from gateway_cli.rest.storage import StorageApi

Result = TypeVar("Result")
EXIT_INTERRUPTED = 130


def on_storage(
    access: Access, work: Callable[["StorageApi"], Awaitable[Result]], interrupted: str = ""
) -> Result:
    """What `work` comes to; its errors end the command with their text.

    `interrupted` is said after Ctrl-C.
    """
    from gateway_cli.rest.calls import RestCalls
    from gateway_cli.rest.storage import StorageApi

    async def run() -> Result:
        async with RestCalls(access.base_url, access.key, print_note) as calls:
            return await work(StorageApi(calls))

    with explained(interrupted):
        return asyncio.run(run())


async def take_some(items: AsyncIterator[Result], limit: int) -> list[Result]:
    """The first `limit` of them; says so where there are more."""
    found: list[Result] = []
    async for item in items:
        if len(found) == limit:
            print_note(f"there are more than {limit}: --limit shows them")
            break
        found.append(item)
    return found


@contextlib.contextmanager
def explained(interrupted: str = "") -> Iterator[None]:
    """Turns errors that a user can act on into text and an exit code."""
    try:
        yield
    except RestError as error:
        print_error(str(error))
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        if interrupted:
            print_note(interrupted)
        raise typer.Exit(EXIT_INTERRUPTED) from error
