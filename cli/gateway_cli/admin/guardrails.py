"""`gatewayctl guardrails`: limits that some keys of an account share."""

from typing import Annotated

import typer

from gateway_cli import options as opt
from gateway_cli.admin import limits
from gateway_cli.admin.documents import complete_budget, describe_guardrail
from gateway_cli.admin.objects import KindView, Patch
from gateway_cli.admin.tokens import name_declared
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import AlreadyThere, ClusterError
from gateway_cli.output import Column, Output
from gateway_cli.session import confirm
from gateway_core.api.account import GatewayAccount
from gateway_core.api.guardrail import GUARDRAIL_PREFIX, GatewayGuardrail
from gateway_core.api.ids import ACCOUNT_LABEL, id_to_name
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import MOST_GUARDRAILS
from gateway_core.api.resource import Object

app = typer.Typer(add_completion=False, no_args_is_help=True)
limit_app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="How much its keys may spend together."
)
app.add_typer(limit_app, name="limit")

COLUMNS = (
    Column("NAME", "name"),
    Column("ACCOUNT", "account"),
    Column("DISPLAY", "display_name"),
    Column("KEYS", lambda guardrail: len(guardrail["keys"]), right=True),
    Column("LIMIT", limits.show_limit),
    Column("USED", "used", right=True),
    Column("RESETS", "resets_at"),
    Column("READY", "ready"),
    Column("REASON", "reason"),
)
LINES = (
    Column("Name", "name"),
    Column("Id", "id"),
    Column("Account", "account"),
    Column("Display name", "display_name"),
    Column("Description", "description"),
    *limits.BUDGET_LINES,
    Column("Keys", "keys"),
    Column("Ready", "ready"),
    Column("Reason", "reason"),
    Column("Message", "message"),
    Column("Created", "created_at"),
)

DeniedModels = Annotated[
    list[str] | None,
    typer.Option(
        "--deny-model", help="A refused model, or a prefix such as veo-*; may be repeated."
    ),
]
DeniedProviders = Annotated[
    list[str] | None,
    typer.Option("--deny-provider", help="A refused provider segment; may be repeated."),
]
Description = Annotated[str | None, typer.Option(help="Description of its use.")]


VIEW = KindView(GatewayGuardrail, "guardrail", describe_guardrail, COLUMNS, LINES)


@app.command("list")
def list_guardrails(
    account: opt.AccountFilter = None, namespace: opt.Namespace = None, output: Output = "table"
) -> None:
    """List guardrails, of all accounts or one, with their use as of a few seconds ago."""
    VIEW.print_all(namespace, output, **{"spec.accountName": account})


@app.command()
def describe(
    guardrail: opt.GuardrailName, namespace: opt.Namespace = None, output: Output = "table"
) -> None:
    """Show a guardrail: its restrictions, its keys, and their use."""
    VIEW.print_one(id_to_name(guardrail), namespace, output, complete_budget)


@app.command()
def create(
    account: opt.AccountName,
    display_name: Annotated[str, typer.Option("--name", help="Unique in the account.")],
    description: Description = None,
    limit: opt.LimitDollars = None,
    window: opt.LimitWindow = None,
    rpm: opt.RequestsPerMinute = None,
    cache: opt.CacheSeconds = None,
    model: opt.ModelEntries = None,
    deny_model: DeniedModels = None,
    provider: opt.ProviderEntries = None,
    deny_provider: DeniedProviders = None,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Create a guardrail of ACCOUNT; add keys with `assign`."""
    spec = {
        "accountName": account,
        "limit": limits.make_limit(limit, window),
        **limits.name_fields(
            display_name=display_name,
            description=description,
            rpm=rpm,
            cache=cache,
            model=model,
            deny_model=deny_model,
            provider=provider,
            deny_provider=deny_provider,
        ),
    }

    async def run(cluster: Cluster) -> Object:
        await cluster.get(GatewayAccount, account)
        for other in await cluster.list_all(GatewayGuardrail, **{"spec.accountName": account}):
            if other["spec"]["displayName"] == display_name:
                raise AlreadyThere(
                    f"account {account} has a guardrail called {display_name}:"
                    f" {other['metadata']['name']}"
                )
        name = name_declared(display_name, GUARDRAIL_PREFIX)
        labels = {ACCOUNT_LABEL: account}
        return await cluster.create(GatewayGuardrail, name, spec, labels=labels)

    VIEW.print_changed(on_cluster(namespace, run), "is there", output)


@app.command("set")
def change(
    guardrail: opt.GuardrailName,
    display_name: Annotated[str | None, typer.Option("--name", help="Shown in lists.")] = None,
    description: Description = None,
    rpm: opt.RequestsPerMinute = None,
    cache: opt.CacheSeconds = None,
    model: opt.ModelEntries = None,
    deny_model: DeniedModels = None,
    provider: opt.ProviderEntries = None,
    deny_provider: DeniedProviders = None,
    clear: Annotated[
        list[limits.Clearable] | None, typer.Option(help="Remove a restriction; may be repeated.")
    ] = None,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Change the given fields. Effective within 5 seconds."""
    given = limits.name_fields(
        display_name=display_name,
        description=description,
        rpm=rpm,
        cache=cache,
        model=model,
        deny_model=deny_model,
        provider=provider,
        deny_provider=deny_provider,
    )
    patch = limits.merge_fields(given, clear, GatewayGuardrail)
    VIEW.change(id_to_name(guardrail), patch, "is changed", namespace, output)


@limit_app.command("set")
def set_limit(
    guardrail: opt.GuardrailName,
    amount: opt.Dollars,
    window: opt.WindowOption,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Limit the keys of a guardrail together to DOLLARS in a window."""
    VIEW.change(
        id_to_name(guardrail),
        {"spec": {"limit": limits.make_limit(amount, window)}},
        lambda document: f"lets spend {limits.show_limit(document)}",
        namespace,
        output,
    )


@limit_app.command("clear")
def clear_limit(
    guardrail: opt.GuardrailName, namespace: opt.Namespace = None, output: Output = "table"
) -> None:
    """Remove a guardrail's limit; those of its keys stay."""
    patch = {"spec": {"limit": None}}
    VIEW.change(id_to_name(guardrail), patch, "has no limit", namespace, output)


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

    VIEW.print_changed(on_cluster(namespace, run), f"holds for {', '.join(wanted)}", output)


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
    VIEW.change(id_to_name(guardrail), decide, text, namespace, output)


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
    VIEW.delete(name, namespace, output)


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
