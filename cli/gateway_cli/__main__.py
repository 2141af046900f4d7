"""The entry point of `gatewayctl`, of `kubectl modelgateway` and of `python -m gateway_cli`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from gateway_cli.cluster.flags import PANEL, add_flags, select_cluster
from gateway_cli.nouns import NounGroup
from gateway_cli.output import print_error, print_plain
from gateway_cli.session import EXIT_FAILED, SELECTED

PLUGIN = "kubectl-modelgateway"
"""The program that `kubectl modelgateway` looks for on PATH."""
DEBUG = "GATEWAYCTL_DEBUG"
"""A variable with which an unexpected error shows its traceback."""
PLAIN_WIDTH = 120
"""Columns of help that no terminal shows."""

app = typer.Typer(
    name="gatewayctl",
    cls=NounGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def show_version(wanted: bool) -> None:
    """Print the release, the API of its objects and the interpreter, and end."""
    if wanted:
        # help does without schemas
        from gateway_core.api.ids import API_VERSION
        from gateway_core.api.resource import RELEASE

        python = ".".join(map(str, sys.version_info[:3]))
        print_plain(f"gatewayctl {RELEASE} ({API_VERSION}, Python {python})")
        raise typer.Exit


@app.callback()
@add_flags
def choose_cluster(
    ctx: typer.Context,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="The gateway's namespace.", rich_help_panel=PANEL),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version."),
    ] = False,
    **_flags: Any,
) -> None:
    """Model Gateway on the command line."""
    SELECTED.set(select_cluster(ctx.params))


def is_for_people() -> bool:
    """Return whether both outputs are at a terminal that shows boxes and colours."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    is_dumb = os.environ.get("TERM", "") in ("", "dumb", "unknown")
    return not is_dumb and sys.stdout.isatty() and sys.stderr.isatty()


def main() -> None:
    """Run the command that the arguments name."""
    # else help and usage errors are plain lines
    typer.core.HAS_RICH = is_for_people()
    width = {} if typer.core.HAS_RICH else {"terminal_width": PLAIN_WIDTH}
    is_plugin = Path(sys.argv[0]).name == PLUGIN
    try:
        app(prog_name="kubectl modelgateway" if is_plugin else "gatewayctl", **width)
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        print_error(
            f"gatewayctl failed ({type(error).__name__}: {error}). This is a defect of the program:"
            f" please report it with what {DEBUG}=1 prints for the same command"
        )
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
