"""`gatewayctl apply`: objects from files, as the chart's hook Job and admins apply them."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gateway_cli.admin.amounts import parse_period
from gateway_cli.admin.options import Namespace
from gateway_cli.admin.session import explained
from gateway_cli.install.manifests import read_manifests
from gateway_cli.install.paidfunds import is_account, keep_funds
from gateway_cli.output import Output, print_data, print_note, print_plain

app = typer.Typer(add_completion=False)


@app.command()
def apply(
    files: Annotated[
        list[Path],
        typer.Option("--filename", "-f", help="A YAML file or folder; - is standard input."),
    ],
    patience: Annotated[
        int,
        typer.Option(
            parser=parse_period,
            metavar="PERIOD",
            help="How long to wait for an API server or a kind that is not there yet.",
        ),
    ] = 0,
    lower_funds: Annotated[
        bool,
        typer.Option("--lower-funds", help="Also take from accounts what the files do not name."),
    ] = False,
    namespace: Namespace = None,
    output: Output = "table",
) -> None:
    """Apply objects (server-side): make them, or change the fields that the files name.

    Funds of accounts are only raised: money that was added since stays.
    """

    async def run() -> list[dict[str, str]]:
        from gateway_cli.compose import open_cluster

        applied = []
        objects = read_manifests(files)
        async with open_cluster(namespace, patience) as cluster:
            for obj in objects:
                keeping = is_account(obj) and not lower_funds
                await cluster.apply(obj, partial(keep_funds, obj, print_note) if keeping else None)
                applied.append({"kind": obj["kind"], "name": obj["metadata"]["name"]})
                if output == "table":
                    print_plain(f"{obj['kind']}/{obj['metadata']['name']} applied")
        return applied

    with explained():
        applied = asyncio.run(run())
    if output != "table":
        print_data({"items": applied}, output)
