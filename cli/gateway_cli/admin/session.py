"""Runs an admin's command on the cluster, and explains what goes wrong.

The client is imported when a command runs: help and completion do without.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import typer

from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import print_error

if TYPE_CHECKING:
    from gateway_cli.admin.objects import GatewayObjects

Result = TypeVar("Result")


def on_cluster(
    namespace: str | None, work: Callable[["GatewayObjects"], Awaitable[Result]]
) -> Result:
    """What `work` comes to on the gateway's objects; its errors end the command with their text."""
    from gateway_cli.compose import open_objects

    async def run() -> Result:
        async with open_objects(namespace) as objects:
            return await work(objects)

    with explained():
        return asyncio.run(run())


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turns errors that a user can act on into text and an exit code."""
    try:
        yield
    except ClusterError as error:
        print_error(str(error))
        raise typer.Exit(error.exit_code) from error


def confirm(question: str, yes: bool) -> None:
    """Asks before what cannot be undone; where nobody can answer, `--yes` has to."""
    if not yes:
        typer.confirm(question, abort=True, err=True)
