"""`gatewayctl users`: people, and what they are in which account (contract §9.2)."""

from typing import Annotated

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import describe_user
from gateway_cli.admin.objects import KindView, Patch
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import Column, Output, print_list, print_note, print_one, print_plain
from gateway_cli.session import confirm
from gateway_core.accounts.passwords import generate_password, hash_password
from gateway_core.api.account import GatewayAccount, GatewayUser, Role
from gateway_core.api.resource import Object

app = typer.Typer(add_completion=False, no_args_is_help=True)

COLUMNS = (
    Column("NAME", "name"),
    Column("DISPLAY", "display_name"),
    Column("EMAIL", "email"),
    Column("ROLES", "memberships"),
    Column("SUSPENDED", "suspended"),
    Column("READY", "ready"),
)
LINES = (
    Column("Name", "name"),
    Column("Display name", "display_name"),
    Column("Email", "email"),
    Column("Roles", "memberships"),
    Column("Suspended", "suspended"),
    Column("Ready", "ready"),
    Column("Reason", "reason"),
    Column("Message", "message"),
    Column("Created", "created_at"),
)

RoleOption = Annotated[
    Role, typer.Option(help="owner, admin and member may create; viewer may only read.")
]


VIEW = KindView(GatewayUser, "user", describe_user, COLUMNS, LINES)


@app.command("list")
def list_users(
    account: opt.AccountFilter = None, namespace: opt.Namespace = None, output: Output = "table"
) -> None:
    """List users, of all accounts or one, with their roles."""
    found = on_cluster(namespace, lambda cluster: cluster.list_all(GatewayUser))
    users = [describe_user(obj) for obj in found]
    shown = [user for user in users if account is None or account in user["memberships"]]
    print_list(shown, COLUMNS, output, noun="users")


@app.command()
def describe(user: opt.UserName, namespace: opt.Namespace = None, output: Output = "table") -> None:
    """Show a user and their role in each account."""
    VIEW.print_one(user, namespace, output)


@app.command()
def create(
    user: Annotated[str, typer.Argument(help="Its name: lowercase letters, digits, dashes.")],
    email: Annotated[str, typer.Option(help="The person's address.")],
    display_name: Annotated[str | None, typer.Option(help="The person's name.")] = None,
    account: Annotated[
        str | None,
        typer.Option(
            "--account",
            "-a",
            help="An account of which the user becomes a member.",
            autocompletion=opt.complete_accounts,
        ),
    ] = None,
    role: RoleOption = "member",
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Create a user, optionally with a role in --account."""

    async def run(cluster: Cluster) -> Object:
        if account:
            await cluster.get(GatewayAccount, account)
        spec = {
            "displayName": display_name or user,
            "email": email,
            "memberships": [{"accountName": account, "role": role}] if account else None,
        }
        return await VIEW.create(cluster, user, spec)

    VIEW.print_changed(on_cluster(namespace, run), "is there", output)


@app.command()
def grant(
    user: opt.UserName,
    account: opt.OfAccount,
    role: RoleOption,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Set a user's role in an account; their keys follow."""

    async def run(cluster: Cluster) -> Object:
        await cluster.get(GatewayAccount, account)
        return await cluster.change(GatewayUser, user, decide)

    def decide(obj: Object) -> Patch:
        membership = {"accountName": account, "role": role}
        return {"spec": {"memberships": [*_list_others(obj, account), membership]}}

    VIEW.print_changed(on_cluster(namespace, run), f"is {role} of account {account}", output)


@app.command()
def revoke(
    user: opt.UserName,
    account: opt.OfAccount,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Remove a user from an account. Keys that they created there become invalid."""

    def decide(obj: Object) -> Patch:
        rest = _list_others(obj, account)
        if len(rest) == len(obj["spec"].get("memberships") or ()):
            raise ClusterError(f"user {user} is no member of account {account}")
        return {"spec": {"memberships": rest}}

    VIEW.change(user, decide, f"is out of account {account}", namespace, output)


@app.command("reset-password")
def reset_password(
    user: opt.UserName, namespace: opt.Namespace = None, output: Output = "table"
) -> None:
    """Give a user a new password, printed once. Their sessions by the old one end."""
    password = generate_password()
    patch = {"spec": {"passwordHash": hash_password(password)}}
    on_cluster(namespace, lambda cluster: cluster.change(GatewayUser, user, lambda _: patch))
    if output != "table":
        print_one({"name": user, "password": password}, (), output)
        return
    print_plain(password)
    print_note(f"is the password of user {user}; it is not shown again")


@app.command()
def suspend(user: opt.UserName, namespace: opt.Namespace = None, output: Output = "table") -> None:
    """Refuse a user's sign-in and all keys that they created, until `resume`."""
    VIEW.change(user, {"spec": {"suspended": True}}, "is suspended", namespace, output)


@app.command()
def resume(user: opt.UserName, namespace: opt.Namespace = None, output: Output = "table") -> None:
    """Enable the keys of a suspended user."""
    VIEW.change(user, {"spec": {"suspended": False}}, "may act again", namespace, output)


@app.command()
def delete(
    user: opt.UserName,
    yes: opt.Yes = False,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Delete a user, and wait until it is gone.

    Keys that they created are revoked, and access that they gave to applications ends.
    """
    confirm(f"Delete user {user}?", yes)
    VIEW.delete(user, namespace, output)


def _list_others(obj: Object, account: str) -> list[dict[str, str]]:
    """The memberships in all other accounts."""
    present = obj["spec"].get("memberships") or []
    return [membership for membership in present if membership["accountName"] != account]
