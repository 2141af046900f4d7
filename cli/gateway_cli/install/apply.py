"""`gatewayctl apply`: objects from files, as the chart's hook Job and admins apply them.

Applying an account takes back no money that was paid in since its file was written: `spec.funds` is
everything ever paid in, and both files and `gatewayctl fund` write it. An applied figure that is
lower than what is there is therefore raised to it, unless lowering is asked for.
"""

import asyncio
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import dollars
from gateway_cli.cluster import FIELD_MANAGER, applying
from gateway_cli.cluster.client import open_cluster
from gateway_cli.cluster.manifests import read_manifests
from gateway_cli.output import Output, print_data, print_note, print_plain
from gateway_cli.session import exit_on_error
from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import GROUP
from gateway_core.api.resource import Object

POTS = ("paidMicros", "bonusMicros")

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
            parser=opt.parse_period,
            metavar="PERIOD",
            help="How long to wait for an API server or a kind that is not served yet.",
        ),
    ] = 0,
    lower_funds: Annotated[
        bool,
        typer.Option(
            "--lower-funds", help="Also lower the funds of accounts to the files' figures."
        ),
    ] = False,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Apply objects (server-side): create them, or change the fields in the files.

    Funds of accounts are only raised, never lowered.
    """

    async def run() -> list[dict[str, str]]:
        applied = []
        objects = read_manifests(files)
        async with open_cluster(namespace, patience=patience) as cluster:
            for obj in objects:
                keeping = _is_account(obj) and not lower_funds
                adapt = partial(keep_funds, obj, print_note) if keeping else None
                done = await applying.apply(cluster, obj, adapt)
                name = obj["metadata"]["name"]
                applied.append({"kind": obj["kind"], "name": name, "done": done})
                if output == "table":
                    print_plain(f"{obj['kind']}/{name} {done}")
        return applied

    with exit_on_error():
        applied = asyncio.run(run())
    if output != "table":
        print_data({"items": applied}, output)


def keep_funds(obj: Object, report: Callable[[str], None], present: Object | None) -> Object:
    """Return the account to apply with no funds lower than in `present`; report what was kept.

    Funds that an earlier file named and this one does not stay in it, since what is applied no more
    is taken away. It bears the version that was read, so that a payment in between is a conflict.
    """
    if present is None or not isinstance(obj.get("spec"), dict):
        return obj
    there = present["spec"].get("funds") or {}
    given = obj["spec"].get("funds") or {}
    if not isinstance(given, dict):
        return obj
    applied = _list_applied(present)
    kept = {
        pot: there[pot] for pot in POTS if pot in there and _is_lower(given, pot, there, applied)
    }
    for pot, micros in kept.items():
        said = f"names {dollars(given[pot])} USD" if given.get(pot) is not None else "names none"
        report(
            f"! {obj['metadata']['name']} keeps its funds.{pot} of {dollars(micros)} USD; the file"
            f" {said}, and --lower-funds would take the difference away"
        )
    adapted = copy.deepcopy(obj)
    if kept:
        adapted["spec"]["funds"] = {**given, **kept}
    adapted["metadata"].setdefault("resourceVersion", present["metadata"]["resourceVersion"])
    return adapted


def _is_account(obj: Object) -> bool:
    group = str(obj["apiVersion"]).partition("/")[0]
    return (group, obj["kind"]) == (GROUP, GatewayAccount.kind_name)


def _is_lower(given: dict[str, Any], pot: str, there: dict[str, int], applied: set[str]) -> bool:
    """Return whether applying `given` would leave less in the pot than is there."""
    if given.get(pot) is None:
        return pot in applied and there[pot] > 0
    # what is no number is for the API server to refuse
    return isinstance(given[pot], int) and given[pot] < there[pot]


def _list_applied(present: Object) -> set[str]:
    """Return the pots that an earlier `gatewayctl apply` named."""
    return {
        pot
        for entry in present["metadata"].get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"
        for pot in POTS
        if f"f:{pot}" in entry.get("fieldsV1", {}).get("f:spec", {}).get("f:funds", {})
    }
