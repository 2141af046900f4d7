"""`gatewayctl accounts webhook-secret`: what an account's callbacks are signed with.

A rotation makes a new Secret and refers to it; the one before signs beside it for 24 hours
(contract §11.2). No Secret is changed in place: receivers that have the old one would refuse all.
"""

import contextlib
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.admin.fields import Patch
from gateway_cli.admin.table import ACCOUNTS
from gateway_cli.admin.tokens import SECRET_LABELS, make_webhook_secret
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError, OutcomeUnknown
from gateway_cli.cluster.secrets import create_secret, delete_secret, read_secret
from gateway_cli.commands import cluster_command
from gateway_cli.output import Secret, show_secret
from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import ACCOUNT_LABEL
from gateway_core.api.resource import Object
from gateway_core.callbacks.rotation import (
    ENTRY,
    RotationUnderWay,
    plan_rotation,
    refuse_second,
)

accounts = ACCOUNTS.make_app()
app = typer.Typer(
    add_completion=False,
    cls=opt.CommandGroup,
    no_args_is_help=True,
    help="The secret that an account's callbacks are signed with.",
)
accounts.add_typer(app, name="webhook-secret")


@cluster_command(app, show_secret)
async def show(cluster: Cluster, account: opt.AccountName) -> Secret:
    """Print the signing secret, for the author of the receiver."""
    spec = (await cluster.get(GatewayAccount, account))["spec"]
    ref = spec.get("webhookSecretRef")
    if ref is None:
        raise ClusterError(
            f"account {account} has no webhook secret;"
            f" `gatewayctl accounts webhook-secret rotate {account}` makes one"
        )
    value = await read_secret(cluster, ref["name"], ref["key"])
    return _tell(account, spec, value.decode(errors="replace").strip())


@cluster_command(app, show_secret)
async def rotate(
    cluster: Cluster,
    account: opt.AccountName,
    secret_name: Annotated[
        str | None,
        typer.Option(
            help="Name of the new Secret: one of the chart's operator.secretNames, unless"
            " operator.readAnySecret is set."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also during an earlier rotation.")
    ] = False,
) -> Secret:
    """Create a new signing secret and print it; the old one also signs for 24 hours."""
    value = make_webhook_secret()
    name = secret_name or f"{account}-webhook-{secrets.token_hex(3)}"
    now = datetime.now(UTC)
    _refuse_second(await cluster.get(GatewayAccount, account), now, force)
    await create_secret(cluster, name, {ENTRY: value}, {**SECRET_LABELS, ACCOUNT_LABEL: account})

    def decide(obj: Object) -> Patch | None:
        plan = plan_rotation(obj["spec"], name, now)
        if plan is None:
            # by an earlier attempt, whose answer was lost
            return None
        _refuse_second(obj, now, force)
        return {"spec": plan}

    try:
        changed = await _refer(cluster, account, name, decide)
    except OutcomeUnknown:
        # it may be what callbacks are signed with
        raise
    except ClusterError:
        # nothing refers to it
        with contextlib.suppress(ClusterError):
            await delete_secret(cluster, name)
        raise
    return _tell(account, changed["spec"], value)


async def _refer(
    cluster: Cluster,
    account: str,
    name: str,
    decide: Callable[[Object], Patch | None],
) -> Object:
    """Return the account after `decide`'s change, made once more where its outcome is not known.

    Raises:
        OutcomeUnknown: nor is it then; the text names the Secret, which has to stay.
        ClusterError: the account does not refer to the Secret, and will not.
    """
    try:
        return await cluster.change(GatewayAccount, account, decide)
    except OutcomeUnknown:
        try:
            return await cluster.change(GatewayAccount, account, decide)
        except ClusterError as error:
            raise OutcomeUnknown(
                f"{error}. It is not known whether account {account} refers to the new Secret"
                f" {name}, which is left: `gatewayctl accounts webhook-secret show {account}`"
                " tells; if it does not, delete the Secret and rotate again"
            ) from error


def _refuse_second(obj: Object, now: datetime, force: bool) -> None:
    """ClusterError where a rotation would end the secret that receivers may still have."""
    if force:
        return
    try:
        refuse_second(obj["spec"], now)
    except RotationUnderWay as error:
        raise ClusterError(
            f"a rotation is under way: {error}, and would cease to; --force does it all the same"
        ) from None


def _tell(account: str, spec: Mapping[str, Any], value: str) -> Secret:
    """Return the secret, its document and its notes."""
    ref, previous = spec["webhookSecretRef"], spec.get("previousWebhookSecretRef") or {}
    document = {
        "account": account,
        "secret": value,
        "secret_name": ref["name"],
        "secret_key": ref["key"],
        "previous_secret_name": previous.get("name"),
        "previous_signs_until": previous.get("expirationTime"),
    }
    notes = [f"in Secret {ref['name']}, entry {ref['key']}"]
    if previous:
        until = previous["expirationTime"]
        notes.append(f"Secret {previous['name']} signs beside it until {until}")
    return value, document, notes
