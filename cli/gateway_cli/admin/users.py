"""`gatewayctl users`: roles in accounts, and passwords (contract §9.2)."""

from gateway_cli import options as opt
from gateway_cli.admin.fields import Patch
from gateway_cli.admin.table import USERS
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import Output, print_note, print_one, print_plain
from gateway_core.accounts.passwords import generate_password, hash_password
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.resource import Object

app = USERS.make_app()


@app.command()
def grant(
    user: opt.UserName,
    account: opt.OfAccount,
    role: opt.Role,
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

    USERS.print_changed(on_cluster(namespace, run), f"is {role} of account {account}", output)


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

    USERS.change(user, decide, f"is out of account {account}", namespace, output)


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


def _list_others(obj: Object, account: str) -> list[dict[str, str]]:
    """The memberships in all other accounts."""
    present = obj["spec"].get("memberships") or []
    return [membership for membership in present if membership["accountName"] != account]
