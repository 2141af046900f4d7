"""`gatewayctl guardrails`: limits that some keys of an account share."""

from typing import Annotated

import typer

from gateway_cli.admin.documents import complete_budget, describe_guardrail
from gateway_cli.admin.limits import (
    BUDGET_LINES,
    Clearable,
    make_limit,
    merge_fields,
    name_fields,
    show_limit,
)
from gateway_cli.admin.objects import KindView, Patch
from gateway_cli.admin.tokens import name_declared
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import AlreadyThere, ClusterError
from gateway_cli.options import (
    AccountFilter,
    AccountName,
    Dollars,
    GuardrailName,
    KeyNames,
    LimitDollars,
    LimitWindow,
    ModelEntries,
    Namespace,
    ProviderEntries,
    RequestsPerMinute,
    WindowOption,
    Yes,
)
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
    Column("LIMIT", show_limit),
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
    *BUDGET_LINES,
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
    account: AccountFilter = None, namespace: Namespace = None, output: Output = "table"
) -> None:
    """List guardrails, of all accounts or one, with their use as of the last minute."""
    VIEW.print_all(namespace, output, **{"spec.accountName": account})


@app.command()
def describe(
    guardrail: GuardrailName, namespace: Namespace = None, output: Output = "table"
) -> None:
    """Show a guardrail: its restrictions, its keys, and their use."""
    VIEW.print_one(id_to_name(guardrail), namespace, output, complete_budget)


@app.command()
def create(
    account: AccountName,
    display_name: Annotated[str, typer.Option("--name", help="Unique in the account.")],
    description: Description = None,
    limit: LimitDollars = None,
    window: LimitWindow = None,
    rpm: RequestsPerMinute = None,
    model: ModelEntries = None,
    deny_model: DeniedModels = None,
    provider: ProviderEntries = None,
    deny_provider: DeniedProviders = None,
    namespace: Namespace = None,
    output: Output = "table",
) -> None:
    """Create a guardrail of ACCOUNT; add keys with `assign`."""
    spec = {
        "accountName": account,
        "limit": make_limit(limit, window),
        **name_fields(
            display_name=display_name,
            description=description,
            rpm=rpm,
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
    guardrail: GuardrailName,
    display_name: Annotated[str | None, typer.Option("--name", help="Shown in lists.")] = None,
    description: Description = None,
    rpm: RequestsPerMinute = None,
    model: ModelEntries = None,
    deny_model: DeniedModels = None,
    provider: ProviderEntries = None,
    deny_provider: DeniedProviders = None,
    clear: Annotated[
        list[Clearable] | None, typer.Option(help="Remove a restriction; may be repeated.")
    ] = None,
    namespace: Namespace = None,
    output: Output = "table",
) -> None:
    """Change the given fields. Effective within 5 seconds."""
    given = name_fields(
        display_name=display_name,
        description=description,
        rpm=rpm,
        model=model,
        deny_model=deny_model,
        provider=provider,
        deny_provider=deny_provider,
    )
    patch = merge_fields(given, clear, GatewayGuardrail)
    VIEW.change(id_to_name(guardrail), patch, "is changed", namespace, output)


@limit_app.command("set")
def set_limit(
    guardrail: GuardrailName,
    amount: Dollars,
    window: WindowOption,
    namespace: Namespace = None,
    output: Output = "table",
) -> None:
    """Limit the keys of a guardrail together to DOLLARS in a window."""
    VIEW.change(
        id_to_name(guardrail),
        {"spec": {"limit": make_limit(amount, window)}},
        lambda document: f"lets spend {show_limit(document)}",
        namespace,
        output,
    )


@limit_app.command("clear")
def clear_limit(
    guardrail: GuardrailName, namespace: Namespace = None, output: Output = "table"
) -> None:
    """Remove a guardrail's limit; those of its keys stay."""
    patch = {"spec": {"limit": None}}
    VIEW.change(id_to_name(guardrail), patch, "has no limit", namespace, output)


@app.command()
def assign(
    guardrail: GuardrailName, keys: KeyNames, namespace: Namespace = None, output: Output = "table"
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
    guardrail: GuardrailName, keys: KeyNames, namespace: Namespace = None, output: Output = "table"
) -> None:
    """Remove KEYS from a guardrail; their spending stays counted in its budget."""
    gone = {id_to_name(key) for key in keys}

    def decide(obj: Object) -> Patch:
        return _name_keys([key for key in _keys_of(obj) if key not in gone])

    text = f"does not hold for {', '.join(sorted(gone))}"
    VIEW.change(id_to_name(guardrail), decide, text, namespace, output)


@app.command()
def delete(
    guardrail: GuardrailName,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if it has keys, which it then no longer restricts."),
    ] = False,
    yes: Yes = False,
    namespace: Namespace = None,
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
