"""`gatewayctl completion`: the script that a shell reads, as `kubectl completion` prints it."""

import os
from typing import Annotated, Literal

import typer

PROGRAM = "gatewayctl"
VARIABLE = "_GATEWAYCTL_COMPLETE"
"""The variable that Typer reads first: `_GATEWAYCTL_COMPLETE=source_bash gatewayctl`."""

app = typer.Typer(add_completion=False)


@app.command()
def completion(
    ctx: typer.Context,
    shell: Annotated[
        Literal["bash", "zsh", "fish", "powershell"], typer.Argument(help="The shell.")
    ],
) -> None:
    """Print the completion of a shell, e.g. `source <(gatewayctl completion bash)`.

    `gatewayctl --install-completion` adds it to the files of the current shell instead.
    """
    os.environ[VARIABLE] = f"source_{shell}"
    try:
        ctx.find_root().command.main([], PROGRAM)
    finally:
        del os.environ[VARIABLE]
