"""The entry point of `gatewayctl` and of `python -m gateway_cli`."""

import typer

from gateway_cli.install.commands import app as install_app
from gateway_cli.install.commands import apply
from gateway_cli.local.commands import app as local_app

app = typer.Typer(
    name="gatewayctl",
    help="Model Gateway on the command line.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(local_app, name="local")
app.add_typer(install_app, name="install")
app.command()(apply)


@app.callback()
def describe() -> None:
    """Model Gateway on the command line."""


def main() -> None:
    """Runs the command that the arguments name."""
    app()


if __name__ == "__main__":
    main()
