"""`gatewayctl completion`: the script that a shell reads, as `kubectl completion` prints it."""

from typing import Annotated, Literal

import typer
from typer._completion_shared import get_completion_script

from gateway_cli.output import print_plain

PROGRAM = "gatewayctl"

app = typer.Typer(add_completion=False)


@app.command()
def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish", "powershell"], typer.Argument(help="The shell.")
    ],
) -> None:
    """Print the completion of a shell, e.g. `source <(gatewayctl completion bash)`.

    `gatewayctl --install-completion` adds it to the files of the current shell instead.
    """
    variable = f"_{PROGRAM.upper()}_COMPLETE"
    print_plain(get_completion_script(prog_name=PROGRAM, complete_var=variable, shell=shell))
