"""`gatewayctl guardrails`: which keys of an account share its limits."""

from typing import Annotated

import typer

from gateway_cli import options as opt
from gateway_cli.admin.fields import Patch
from gateway_cli.admin.table import GUARDRAILS
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.commands import cluster_command
from gateway_cli.output import Done, count, show_done
from gateway_cli.session import confirm
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import id_to_name
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import MOST_GUARDRAILS
from gateway_core.api.resource import Object

app = GUARDRAILS.make_app()


@cluster_command(app, show_done)
async def assign(cluster: Cluster, guardrail: opt.GuardrailName, keys: opt.KeyNames) -> Done:
    """Add KEYS to a guardrail: all of them, or none if one cannot be added."""
    wanted, name = [id_to_name(key) for key in keys], id_to_name(guardrail)
    account = (await cluster.get(GatewayGuardrail, name))["spec"]["accountName"]
    guardrails = await cluster.list_all(GatewayGuardrail, **{"spec.accountName": account})
    for key in wanted:
        if (await cluster.get(GatewayKey, key))["spec"]["accountName"] != account:
            raise ClusterError(f"key {key} is not of account {account}; nothing is assigned")
        # the most that admission holds a call against
        others = [obj for obj in guardrails if obj["metadata"]["name"] != name]
        if sum(key in _keys_of(obj) for obj in others) >= MOST_GUARDRAILS:
            raise ClusterError(
                f"key {key} has {MOST_GUARDRAILS} guardrails, the most there may be;"
                " nothing is assigned"
            )
    text = f"it holds for {', '.join(wanted)}"
    return await GUARDRAILS.change(
        cluster, name, lambda obj: _name_keys([*_keys_of(obj), *wanted]), text
    )


@cluster_command(app, show_done)
async def unassign(cluster: Cluster, guardrail: opt.GuardrailName, keys: opt.KeyNames) -> Done:
    """Remove KEYS from a guardrail; their spending stays counted in its budget."""
    gone = {id_to_name(key) for key in keys}

    def decide(obj: Object) -> Patch:
        return _name_keys([key for key in _keys_of(obj) if key not in gone])

    text = f"it does not hold for {', '.join(sorted(gone))}"
    return await GUARDRAILS.change(cluster, guardrail, decide, text)


@cluster_command(app, show_done)
async def delete(
    cluster: Cluster,
    guardrail: opt.GuardrailName,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if it has keys, which it then no longer restricts."),
    ] = False,
    yes: opt.Yes = False,
) -> Done:
    """Delete a guardrail without keys."""
    name = id_to_name(guardrail)
    keys = _keys_of(await cluster.get(GatewayGuardrail, name))
    if keys and not force:
        raise ClusterError(
            f"guardrail {name} holds for {count(len(keys), 'key')}: `gatewayctl guardrails"
            " unassign` first, or --force"
        )
    confirm(f"Delete guardrail {name}?", yes)
    return await GUARDRAILS.remove(cluster, name)


def _keys_of(obj: Object) -> list[str]:
    return list(obj["spec"].get("keyNames") or ())


def _name_keys(keys: list[str]) -> Patch:
    return {"spec": {"keyNames": list(dict.fromkeys(keys))}}
