"""`gatewayctl guardrails`: which keys of an account share its limits."""

from typing import Annotated

import typer

from gateway_cli import options as opt
from gateway_cli.admin.fields import Patch
from gateway_cli.admin.table import GUARDRAILS
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import Output
from gateway_cli.session import confirm
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import id_to_name
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import MOST_GUARDRAILS
from gateway_core.api.resource import Object

app = GUARDRAILS.make_app()
GUARDRAILS.add_limit(app, "lets spend", "How much its keys may spend together.")


@app.command()
def assign(
    guardrail: opt.GuardrailName,
    keys: opt.KeyNames,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Add KEYS to a guardrail: all of them, or none if one cannot be added."""
    wanted = [id_to_name(key) for key in keys]

    async def run(cluster: Cluster) -> Object:
        name = id_to_name(guardrail)
        account = (await cluster.get(GatewayGuardrail, name))["spec"]["accountName"]
        for key in wanted:
            if (await cluster.get(GatewayKey, key))["spec"]["accountName"] != account:
                raise ClusterError(f"key {key} is not of account {account}; nothing is assigned")
        _refuse_many(
            await cluster.list_all(GatewayGuardrail, **{"spec.accountName": account}), name, wanted
        )
        return await cluster.change(
            GatewayGuardrail, name, lambda obj: _name_keys([*_keys_of(obj), *wanted])
        )

    GUARDRAILS.print_changed(on_cluster(namespace, run), f"holds for {', '.join(wanted)}", output)


@app.command()
def unassign(
    guardrail: opt.GuardrailName,
    keys: opt.KeyNames,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Remove KEYS from a guardrail; their spending stays counted in its budget."""
    gone = {id_to_name(key) for key in keys}

    def decide(obj: Object) -> Patch:
        return _name_keys([key for key in _keys_of(obj) if key not in gone])

    text = f"does not hold for {', '.join(sorted(gone))}"
    GUARDRAILS.change(id_to_name(guardrail), decide, text, namespace, output)


@app.command()
def delete(
    guardrail: opt.GuardrailName,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if it has keys, which it then no longer restricts."),
    ] = False,
    yes: opt.Yes = False,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Delete a guardrail without keys."""
    name = id_to_name(guardrail)

    async def check(cluster: Cluster) -> None:
        keys = _keys_of(await cluster.get(GatewayGuardrail, name))
        if keys and not force:
            raise ClusterError(
                f"guardrail {name} holds for {len(keys)} keys: `gatewayctl guardrails unassign`"
                " them first, or --force"
            )

    on_cluster(namespace, check)
    confirm(f"Delete guardrail {name}?", yes)
    GUARDRAILS.remove(name, namespace, output)


def _keys_of(obj: Object) -> list[str]:
    return list(obj["spec"].get("keyNames") or ())


def _name_keys(keys: list[str]) -> Patch:
    return {"spec": {"keyNames": list(dict.fromkeys(keys))}}


def _refuse_many(guardrails: list[Object], name: str, keys: list[str]) -> None:
    """ClusterError where a key would have more guardrails than admission holds calls against."""
    others = [obj for obj in guardrails if obj["metadata"]["name"] != name]
    for key in keys:
        if sum(key in _keys_of(obj) for obj in others) >= MOST_GUARDRAILS:
            raise ClusterError(
                f"key {key} has {MOST_GUARDRAILS} guardrails, the most there may be;"
                " nothing is assigned"
            )
