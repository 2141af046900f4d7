"""`gatewayctl keys`: what opens the API for an account, and how far.

A key is made here, and its secret shown once, or by the operator, which writes it into a Secret.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import describe_key
from gateway_cli.admin.fields import Patch, build_spec, make_limit
from gateway_cli.admin.references import warn_of_names
from gateway_cli.admin.table import KEYS
from gateway_cli.admin.tokens import find_key_ring, name_declared, rotate_tokens
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.commands import cluster_command
from gateway_cli.output import Secret, show_secret
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.ids import ACCOUNT_LABEL, id_to_name
from gateway_core.api.key import KEY_PREFIX, MOST_OVERLAP_SECONDS, GatewayKey, KeyClass
from gateway_core.api.resource import Object

PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.25
"""For how long, and how often, the operator is looked at that is to write a secret."""

app = KEYS.make_app()


@cluster_command(app, show_secret, options=KEYS.list_options())
async def create(
    cluster: Cluster,
    account: opt.AccountName,
    display_name: Annotated[str, typer.Option("--name", help="Shown in lists.")] = "Key",
    management: Annotated[
        bool, typer.Option("--management", help="A management key (mk-): it creates no tasks.")
    ] = False,
    created_by: Annotated[
        str | None,
        opt.pick(GatewayUser, "The user whose role the key has; without one, member.", "--by"),
    ] = None,
    secret_name: Annotated[
        str | None,
        typer.Option(help="Let the operator create the key and write it into this Secret."),
    ] = None,
    limit: opt.LimitDollars = None,
    window: opt.LimitWindow = None,
    note: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="A note; may be repeated.")
    ] = None,
    pepper_secret: opt.PepperSecret = None,
    secrets_dir: opt.SecretsFolder = None,
    **given: Any,
) -> Secret:
    """Create a key of ACCOUNT and print its secret, only this once.

    Standard output contains only the secret: `KEY=$(gatewayctl keys create acme)`.
    """
    key_class: KeyClass = "Management" if management else "Standard"
    spec = {
        "accountName": account,
        "class": key_class,
        "displayName": display_name,
        "createdBy": created_by,
        "secretName": secret_name,
        "limit": make_limit(limit, window),
        **build_spec(KEYS.read_settings(), given),
        "metadata": dict(opt.parse_pair(entry, "--note") for entry in note or ()) or None,
    }
    await cluster.get(GatewayAccount, account)
    if created_by is not None:
        await cluster.get(GatewayUser, created_by)
    labels, plaintext = {ACCOUNT_LABEL: account}, None
    if secret_name is not None:
        name = name_declared(display_name)
        await cluster.create(GatewayKey, name, spec, labels=labels)
        made = await _wait_written(cluster, name)
    else:
        ring = await find_key_ring(cluster, pepper_secret, secrets_dir)
        plaintext, token = ring.mint(key_class)
        name = ring.name_object(KEY_PREFIX, account)
        made = await cluster.create(GatewayKey, name, {**spec, "tokens": [token]}, labels=labels)
    return _tell(await warn_of_names(cluster, made), plaintext, "created")


@cluster_command(app, show_secret)
async def rotate(
    cluster: Cluster,
    key: opt.KeyName,
    overlap: Annotated[
        int,
        typer.Option(
            parser=opt.parse_period,
            metavar="PERIOD",
            help="How long the old secret stays valid, e.g. 24h; at most 7d.",
        ),
    ] = 0,
    pepper_secret: opt.PepperSecret = None,
    secrets_dir: opt.SecretsFolder = None,
) -> Secret:
    """Give a key a new secret and print it once; limits, usage and history stay.

    For a key created by the operator, the operator writes the new secret into the Secret.
    """
    if overlap > MOST_OVERLAP_SECONDS:
        raise typer.BadParameter("--overlap is at most 7d")
    name, plaintext = id_to_name(key), None
    spec = _refuse_revoked(await cluster.get(GatewayKey, name))["spec"]
    if "secretName" in spec:

        def decide(obj: Object) -> Patch:
            rotations = _refuse_revoked(obj)["spec"].get("rotations", 0) + 1
            return {"spec": {"rotations": rotations, "overlapSeconds": overlap}}

    else:
        ring = await find_key_ring(cluster, pepper_secret, secrets_dir)
        plaintext, token = ring.mint(spec.get("class", "Standard"))
        until = datetime.now(UTC) + timedelta(seconds=overlap) if overlap else None

        def decide(obj: Object) -> Patch:
            present = _refuse_revoked(obj)["spec"]["tokens"]
            return {"spec": {"tokens": rotate_tokens(present, token, until)}}

    changed = await cluster.change(GatewayKey, name, decide)
    if plaintext is None:
        changed = await _wait_written(cluster, name)
    verb = "updated: it has a new secret" if plaintext else "updated: it gets a new secret"
    return _tell(changed, plaintext, verb)


def _refuse_revoked(obj: Object) -> Object:
    if obj["spec"].get("revoked"):
        raise ClusterError(f"key {obj['metadata']['name']} is revoked; make another one")
    return obj


def _tell(obj: Object, plaintext: str | None, text: str) -> Secret:
    """Return the secret and its notes; without plaintext the operator writes it into a Secret."""
    document = describe_key(obj)
    notes = [f"✓ key {document['name']} {text}"]
    if plaintext is not None:
        notes.append("the secret is shown this once; limits: `gatewayctl keys limit set`")
    elif _is_followed(obj):
        notes.append(
            f"the operator has written it: kubectl get secret {document['secret_name']} --output"
            " go-template='{{index .data \"api-key\" | base64decode}}'"
        )
    else:
        notes.append(
            f"the operator has not written it into Secret {document['secret_name']} yet"
            f" ({document['message'] or 'it says nothing so far'});"
            f" `gatewayctl keys describe {document['name']}` tells when"
        )
    return plaintext, {**document, "secret": plaintext}, notes


async def _wait_written(cluster: Cluster, name: str) -> Object:
    """Return the key once the operator has made its secret, or as it is after half a minute."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        obj = await cluster.get(GatewayKey, name)
        if _is_followed(obj) or time.monotonic() > deadline:
            return obj
        await asyncio.sleep(PAUSE_SECONDS)


def _is_followed(obj: Object) -> bool:
    """Return whether the operator has written the secret that the spec asks for."""
    status = obj.get("status") or {}
    return bool(status.get("tokens")) and (
        status.get("rotations", 0) >= obj["spec"].get("rotations", 0)
    )
