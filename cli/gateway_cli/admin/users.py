"""`gatewayctl users`: people, and what they are in which account (contract §9.2)."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from gateway_cli.admin.completion import complete_accounts
from gateway_cli.admin.documents import describe_user
from gateway_cli.admin.options import AccountFilter, Namespace, OfAccount, UserName, Yes
from gateway_cli.admin.session import confirm, on_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import Column, Output, print_done, print_list, print_one
from gateway_core.contract.account import GatewayAccount
from gateway_core.contract.user import GatewayUser, Role

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
    Role, typer.Option(help="owner, admin and member may create; a viewer may only look.")
]
Memberships = list[dict[str, str]]


@app.command("list")
def list_users(
    account: AccountFilter = None, namespace: Namespace = None, output: Output = "table"
) -> None:
    """All users, or those of one account, with their roles."""
    found = on_cluster(namespace, lambda objects: objects.list_all(GatewayUser))
    users = [describe_user(obj) for obj in found]
    shown = [user for user in users if account is None or account in user["memberships"]]
    print_list(shown, COLUMNS, output, noun="users")


@app.command()
def describe(user: UserName, namespace: Namespace = None, output: Output = "table") -> None:
    """One user: who it is, and the role in each account."""
    found = on_cluster(namespace, lambda objects: objects.get(GatewayUser, user))
    print_one(describe_user(found), LINES, output)


@app.command()
def create(
    user: Annotated[str, typer.Argument(help="Its name: lowercase letters, digits, dashes.")],
    email: Annotated[str, typer.Option(help="The person's address.")],
    display_name: Annotated[str | None, typer.Option(help="The person's name.")] = None,
    account: Annotated[
        str | None,
        typer.Option(
            "--account", "-a", help="A first membership.", autocompletion=complete_accounts
        ),
    ] = None,
    role: RoleOption = "member",
    namespace: Namespace = None,
    output: Output = "table",
) -> None:
    """Make a user, with a role in --account if that is given."""

    async def run(objects: Any) -> dict[str, Any]:
        if account:
            await objects.get(GatewayAccount, account)
        spec = {
            "displayName": display_name or user,
            "email": email,
            "memberships": [{"accountName": account, "role": role}] if account else None,
        }
        made: dict[str, Any] = await objects.create(GatewayUser, user, spec)
        return made

    print_done(f"user {user} is there", describe_user(on_cluster(namespace, run)), output)


@app.command()
def grant(
    user: UserName,
    account: OfAccount,
    role: RoleOption,
    namespace: Namespace = None,
    output: Output = "table",
) -> None:
    """Give a user a role in an account, in place of the one they have; their keys follow."""

    async def run(objects: Any) -> dict[str, Any]:
        await objects.get(GatewayAccount, account)
        changed: dict[str, Any] = await objects.change(
            GatewayUser, user, _change_memberships(lambda rest: [*rest, new], account)
        )
        return changed

    new = {"accountName": account, "role": role}
    changed = on_cluster(namespace, run)
    print_done(f"user {user} is {role} of account {account}", describe_user(changed), output)


@app.command()
def revoke(
    user: UserName, account: OfAccount, namespace: Namespace = None, output: Output = "table"
) -> None:
    """Take a user out of an account: keys that they made there open nothing any more."""
    decide = _change_memberships(lambda rest: rest, account, must_be_there=True)
    changed = on_cluster(namespace, lambda objects: objects.change(GatewayUser, user, decide))
    print_done(f"user {user} is out of account {account}", describe_user(changed), output)


@app.command()
def suspend(user: UserName, namespace: Namespace = None, output: Output = "table") -> None:
    """Refuse all keys that a user made, in every account, until `resume`."""
    _set_suspended(user, True, namespace, output)


@app.command()
def resume(user: UserName, namespace: Namespace = None, output: Output = "table") -> None:
    """Let the keys of a suspended user open again."""
    _set_suspended(user, False, namespace, output)


@app.command()
def delete(
    user: UserName, yes: Yes = False, namespace: Namespace = None, output: Output = "table"
) -> None:
    """Delete a user: keys that they made open nothing any more."""
    confirm(f"Delete user {user}?", yes)
    on_cluster(namespace, lambda objects: objects.delete(GatewayUser, user))
    print_done(f"user {user} is deleted", {"name": user, "deleted": True}, output)


def _set_suspended(user: str, suspended: bool, namespace: str | None, output: Any) -> None:
    patch = {"spec": {"suspended": suspended}}
    changed = on_cluster(
        namespace, lambda objects: objects.change(GatewayUser, user, lambda _: patch)
    )
    text = "is suspended" if suspended else "may act again"
    print_done(f"user {user} {text}", describe_user(changed), output)


def _change_memberships(
    change: Callable[[Memberships], Memberships], account: str, *, must_be_there: bool = False
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A patch of the memberships: `change` gets those of all other accounts."""

    def decide(obj: dict[str, Any]) -> dict[str, Any]:
        present = obj["spec"].get("memberships") or []
        rest = [membership for membership in present if membership["accountName"] != account]
        if must_be_there and len(rest) == len(present):
            name = obj["metadata"]["name"]
            raise ClusterError(f"user {name} is no member of account {account}")
        return {"spec": {"memberships": change(rest)}}

    return decide
