"""`gatewayctl users`: roles in accounts, and passwords (contract §9.2)."""

from datetime import UTC, datetime

from gateway_cli import options as opt
from gateway_cli.admin.fields import Patch
from gateway_cli.admin.table import USERS
from gateway_cli.cluster import FIELD_MANAGER
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.commands import check_address, cluster_command
from gateway_cli.output import Done, Secret, show_done, show_secret
from gateway_core.accounts.changes import REMOVED, note_change
from gateway_core.accounts.password_links import locate_link, make_link
from gateway_core.accounts.passwords import generate_password, hash_password
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.resource import Object
from gateway_core.kube.clock import CLOCK

app = USERS.make_app()


@cluster_command(app, show_done)
async def grant(
    cluster: Cluster, user: opt.UserName, account: opt.OfAccount, role: opt.Role
) -> Done:
    """Set a user's role in an account; their keys follow."""
    await cluster.get(GatewayAccount, account)

    def decide(obj: Object) -> Patch:
        membership = {"accountName": account, "role": role}
        if membership in (obj["spec"].get("memberships") or ()):
            return {}
        noted = _note(obj, account, f"role {role} given")
        return {**noted, "spec": {"memberships": [*_list_others(obj, account), membership]}}

    return await USERS.change(cluster, user, decide, f"{role} of account {account}")


@cluster_command(app, show_done)
async def revoke(cluster: Cluster, user: opt.UserName, account: opt.OfAccount) -> Done:
    """Remove a user from an account. Keys that they created there become invalid."""

    def decide(obj: Object) -> Patch:
        present = obj["spec"].get("memberships") or ()
        role = next((one["role"] for one in present if one["accountName"] == account), None)
        if role is None:
            raise ClusterError(f"user {user} is no member of account {account}")
        # the account's audit keeps the rows of who is no member any more
        noted = _note(obj, account, f"{REMOVED}{role}")
        return {**noted, "spec": {"memberships": _list_others(obj, account)}}

    return await USERS.change(cluster, user, decide, f"no member of account {account}")


@cluster_command(app, show_secret, name="reset-password")
async def reset_password(cluster: Cluster, user: opt.UserName) -> Secret:
    """Give a user a generated password, printed once. Sessions by the old one end, links too."""
    password = generate_password()
    patch = {"spec": {"passwordHash": hash_password(password), "passwordLink": None}}
    await cluster.change(GatewayUser, user, lambda _: patch)
    note = f"is the password of user {user}; it is not shown again"
    return password, {"name": user, "password": password}, [note]


def _note(obj: Object, account: str, text: str) -> Patch:
    """Return the part of a patch that notes a change for the account's audit."""
    noted = note_change(obj, f"client/{FIELD_MANAGER}", text, CLOCK.now(), account)
    return {"metadata": {"annotations": noted}}


@cluster_command(app, show_secret, name="password-link")
async def password_link(cluster: Cluster, user: opt.UserName, base_url: opt.BaseUrl) -> Secret:
    """Make a link with which a user chooses a password, for 72 hours. It ends an earlier link."""
    check_address(base_url)
    link = make_link(user, datetime.now(UTC))
    await cluster.change(GatewayUser, user, lambda _: {"spec": {"passwordLink": link.field}})
    address = locate_link(base_url, link.token)
    note = f"sets the password of user {user}, once, until {link.field['expirationTime']}"
    document = {"name": user, "link": address, "expires_at": link.field["expirationTime"]}
    return address, document, [note, "anyone with the link can choose the password"]


def _list_others(obj: Object, account: str) -> list[dict[str, str]]:
    """Return the memberships in all other accounts."""
    present = obj["spec"].get("memberships") or []
    return [membership for membership in present if membership["accountName"] != account]
