"""`gatewayctl accounts`: who pays, and under which limits."""

from typing import Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import complete_account, describe_account
from gateway_cli.admin.objects import KindView
from gateway_cli.admin.webhooks import app as webhooks_app
from gateway_cli.cluster.client import on_cluster
from gateway_cli.output import Column, Output
from gateway_cli.session import confirm
from gateway_core.api.account import GatewayAccount
from gateway_core.api.key import GatewayKey

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.add_typer(webhooks_app, name="webhook-secret")

COLUMNS = (
    Column("NAME", "name"),
    Column("DISPLAY", "display_name"),
    Column("BALANCE", lambda account: "unlimited" if account["unlimited"] else account["balance"]),
    Column("CHARGED", "charged", right=True),
    Column("RPM", "requests_per_minute", right=True),
    Column("READY", "ready"),
    Column("REASON", "reason"),
)
LINES = (
    Column("Name", "name"),
    Column("Display name", "display_name"),
    Column("Owner", lambda account: f"{account['owner']['name']} <{account['owner']['email']}>"),
    Column("Balance", "balance"),
    Column("Charged so far", "charged"),
    Column("Paid in", "paid"),
    Column("Bonus", "bonus"),
    Column("Unlimited", "unlimited"),
    Column("Suspended", "suspended"),
    Column("Calls a minute", "requests_per_minute"),
    Column("Storage (bytes)", "storage_bytes"),
    Column("Webhook secret", "webhook_secret"),
    Column("  and until it ends", "previous_webhook_secret"),
    Column("Ready", "ready"),
    Column("Reason", "reason"),
    Column("Message", "message"),
    Column("Created", "created_at"),
)

DisplayName = Annotated[str | None, typer.Option(help="Shown in lists and to its users.")]
OwnerName = Annotated[str | None, typer.Option(help="The responsible person.")]
OwnerEmail = Annotated[str | None, typer.Option(help="Address of the responsible person.")]
Unlimited = Annotated[
    bool | None,
    typer.Option("--unlimited/--no-unlimited", help="Accept calls at any balance."),
]
Suspended = Annotated[
    bool | None, typer.Option("--suspended/--no-suspended", help="Refuse all its keys.")
]
StorageBytes = Annotated[
    int | None, typer.Option(min=0, help="Maximum of bytes of its files, including reservations.")
]


VIEW = KindView(GatewayAccount, "account", describe_account, COLUMNS, LINES)


@app.command("list")
def list_accounts(namespace: opt.Namespace = None, output: Output = "table") -> None:
    """List all accounts, with their money as of a few seconds ago."""
    VIEW.print_all(namespace, output)


@app.command()
def describe(
    account: opt.AccountName, namespace: opt.Namespace = None, output: Output = "table"
) -> None:
    """Show an account: its money, its limits, and why it cannot be used."""
    VIEW.print_one(account, namespace, output, complete_account)


@app.command()
def create(
    account: Annotated[str, typer.Argument(help="Its name: lowercase letters, digits, dashes.")],
    owner_email: Annotated[str, typer.Option(help="Address of the responsible person.")],
    owner_name: OwnerName = None,
    display_name: DisplayName = None,
    paid: Annotated[
        int | None, typer.Option(parser=opt.parse_dollars, metavar="DOLLARS", help="Initial funds.")
    ] = None,
    unlimited: Unlimited = None,
    suspended: Suspended = None,
    rpm: opt.RequestsPerMinute = None,
    storage_bytes: StorageBytes = None,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Create an account. Add money with `gatewayctl fund`, keys with `gatewayctl keys create`."""
    spec = {
        "displayName": display_name or account,
        "owner": {"name": owner_name or owner_email.partition("@")[0], "email": owner_email},
        "funds": None if paid is None else {"paidMicros": paid},
        "unlimited": unlimited,
        "suspended": suspended,
        "requestsPerMinute": rpm,
        "storageBytes": storage_bytes,
    }
    made = on_cluster(namespace, lambda cluster: VIEW.create(cluster, account, spec))
    VIEW.print_changed(made, "is there", output)


@app.command("set")
def change(
    account: opt.AccountName,
    display_name: DisplayName = None,
    owner_name: OwnerName = None,
    owner_email: OwnerEmail = None,
    unlimited: Unlimited = None,
    suspended: Suspended = None,
    rpm: opt.RequestsPerMinute = None,
    storage_bytes: StorageBytes = None,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Change the given fields."""
    owner = {"name": owner_name, "email": owner_email}
    given: dict[str, Any] = {
        "displayName": display_name,
        "owner": {field: value for field, value in owner.items() if value} or None,
        "unlimited": unlimited,
        "suspended": suspended,
        "requestsPerMinute": rpm,
        "storageBytes": storage_bytes,
    }
    spec = {field: value for field, value in given.items() if value is not None}
    if not spec:
        raise typer.BadParameter("name what is to be changed, e.g. --rpm 600 or --suspended")
    VIEW.change(account, {"spec": spec}, "is changed", namespace, output)


@app.command()
def delete(
    account: opt.AccountName,
    yes: opt.Yes = False,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Delete an account and all that belongs to it, but its charges, and wait until it is gone.

    Its keys become invalid at once. Its charges move to the folder `closed` of the object store.
    To disable it temporarily, use `gatewayctl accounts set ACCOUNT --suspended`.
    """
    keys = on_cluster(
        namespace, lambda cluster: cluster.list_all(GatewayKey, **{"spec.accountName": account})
    )
    usable = sum(not key["spec"].get("revoked") for key in keys)
    confirm(f"Delete account {account}, which has {usable} keys that are not revoked?", yes)
    VIEW.delete(account, namespace, output)
