"""Parts of every command: the cluster chosen, errors as text and exit code, confirmation."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from gateway_cli.output import print_error, print_note

EXIT_FAILED = 1
EXIT_UNDER_WAY = 3
EXIT_REFUSED = 4
EXIT_UNAVAILABLE = 5
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """An error that ends a command; its text tells the user what to do."""

    exit_code = EXIT_FAILED


@dataclass(frozen=True, slots=True)
class Selection:
    """The cluster chosen on the command line; None leaves it to the environment."""

    kubeconfig: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `gateway_core.kube.kubeconfig.Overrides`."""
    namespace: str | None = None
    call_seconds: float | None = None
    """Time limit of a call to the Kubernetes API."""


SELECTED: ContextVar[Selection] = ContextVar("SELECTED", default=Selection())  # noqa: B039 - it is frozen
"""Set once by the entry point, before a command runs."""


@contextlib.contextmanager
def exit_on_error(
    *, interrupted: str | None = None, exit_code: int | None = None
) -> Iterator[None]:
    """Turn a CommandError into its text and exit code.

    `interrupted`: the note after Ctrl-C. `exit_code` replaces that of every error.
    """
    try:
        yield
    except CommandError as error:
        print_error(str(error))
        raise typer.Exit(exit_code or error.exit_code) from error
    except KeyboardInterrupt as error:
        if interrupted is None:
            raise
        if interrupted:
            print_note(interrupted)
        raise typer.Exit(EXIT_INTERRUPTED) from error


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end a blocking read at once, where asyncio would only cancel the task."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def confirm(question: str, yes: bool) -> None:
    """Ask before a step that cannot be undone; without a terminal `--yes` is needed."""
    if not yes:
        with interruptible():
            typer.confirm(question, abort=True, err=True)
