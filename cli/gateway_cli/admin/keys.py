"""`gatewayctl keys`: what opens the API for an account, and how far.

A key is made here, and its secret shown once, or by the operator, which writes it into a Secret.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import describe_key
from gateway_cli.admin.fields import Patch, make_limit
from gateway_cli.admin.table import KEYS
from gateway_cli.admin.tokens import find_key_ring, name_declared, rotate_tokens
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import Format, Output, print_note, print_one, print_plain
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.ids import ACCOUNT_LABEL, id_to_name
from gateway_core.api.key import KEY_PREFIX, MOST_OVERLAP_SECONDS, GatewayKey, KeyClass
from gateway_core.api.resource import Object

PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.25
"""For how long, and how often, the operator is looked at that is to write a secret."""

app = KEYS.make_app()
KEYS.add_limit(app, "may spend", "How much a key may spend, and in which window.")


@app.command()
def create(
    account: opt.AccountName,
    display_name: Annotated[str, typer.Option("--name", help="Shown in lists.")] = "Key",
    management: Annotated[
        bool, typer.Option("--management", help="A management key (mk-): it creates no tasks.")
    ] = False,
    created_by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="The GatewayUser whose role the key has; without one, member.",
            autocompletion=opt.complete(GatewayUser),
        ),
    ] = None,
    secret_name: Annotated[
        str | None,
        typer.Option(help="Let the operator create the key and write it into this Secret."),
    ] = None,
    limit: opt.LimitDollars = None,
    window: opt.LimitWindow = None,
    rpm: opt.RequestsPerMinute = None,
    cache: opt.CacheSeconds = None,
    model: opt.ModelEntries = None,
    provider: opt.ProviderEntries = None,
    expires: opt.Expiration = None,
    note: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="A note; may be repeated.")
    ] = None,
    pepper_secret: opt.PepperSecret = None,
    secrets_dir: opt.SecretsFolder = None,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Create a key of ACCOUNT and print its secret, only this once.

    Standard output contains only the secret: `KEY=$(gatewayctl keys create acme)`.
    """
    key_class: KeyClass = "Management" if management else "Standard"
    given = {"rpm": rpm, "cache": cache, "model": model, "provider": provider, "expires": expires}
    spec = {
        "accountName": account,
        "class": key_class,
        "displayName": display_name,
        "createdBy": created_by,
        "secretName": secret_name,
        "limit": make_limit(limit, window),
        **KEYS.make_spec(given),
        "metadata": dict(opt.parse_pair(entry, "--note") for entry in note or ()) or None,
    }

    async def run(cluster: Cluster) -> tuple[Object, str | None]:
        await cluster.get(GatewayAccount, account)
        if created_by is not None:
            await cluster.get(GatewayUser, created_by)
        labels = {ACCOUNT_LABEL: account}
        if secret_name is not None:
            name = name_declared(display_name)
            await cluster.create(GatewayKey, name, spec, labels=labels)
            return await _wait_written(cluster, name), None
        ring = await find_key_ring(cluster, pepper_secret, secrets_dir)
        plaintext, token = ring.mint(key_class)
        name = ring.name_object(KEY_PREFIX, account)
        made = await cluster.create(GatewayKey, name, {**spec, "tokens": [token]}, labels=labels)
        return made, plaintext

    made, plaintext = on_cluster(namespace, run)
    _print_secret(made, plaintext, "is made", output)


@app.command()
def rotate(
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
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Give a key a new secret and print it once; limits, usage and history stay.

    For a key created by the operator, the operator writes the new secret into the Secret.
    """
    if overlap > MOST_OVERLAP_SECONDS:
        raise typer.BadParameter("--overlap is at most 7d")

    async def run(cluster: Cluster) -> tuple[Object, str | None]:
        name = id_to_name(key)
        spec = _refuse_revoked(await cluster.get(GatewayKey, name))["spec"]
        if "secretName" in spec:

            def raise_rotations(obj: Object) -> Patch:
                rotations = _refuse_revoked(obj)["spec"].get("rotations", 0) + 1
                return {"spec": {"rotations": rotations, "overlapSeconds": overlap}}

            return await cluster.change(GatewayKey, name, raise_rotations), None
        ring = await find_key_ring(cluster, pepper_secret, secrets_dir)
        plaintext, token = ring.mint(spec.get("class", "Standard"))
        until = datetime.now(UTC) + timedelta(seconds=overlap) if overlap else None

        def replace(obj: Object) -> Patch:
            present = _refuse_revoked(obj)["spec"]["tokens"]
            return {"spec": {"tokens": rotate_tokens(present, token, until)}}

        return await cluster.change(GatewayKey, name, replace), plaintext

    changed, plaintext = on_cluster(namespace, run)
    _print_secret(changed, plaintext, "has a new secret", output)


def _refuse_revoked(obj: Object) -> Object:
    if obj["spec"].get("revoked"):
        raise ClusterError(f"key {obj['metadata']['name']} is revoked; make another one")
    return obj


def _print_secret(obj: Object, plaintext: str | None, text: str, output: Format) -> None:
    """The secret on standard output, once and alone; what is around it on standard error.

    Without plaintext the operator has made it: the note names its Secret.
    """
    document = describe_key(obj)
    if output != "table":
        print_one({**document, "secret": plaintext}, (), output)
        return
    print_note(f"✓ key {document['name']} {text}")
    if plaintext is not None:
        print_plain(plaintext)
        print_note("the secret is shown this once; limits: `gatewayctl keys limit set`")
        return
    secret = obj["spec"]["secretName"]
    if _is_followed(obj):
        print_note(
            f"the operator has written it: kubectl get secret {secret} --output"
            " go-template='{{index .data \"api-key\" | base64decode}}'"
        )
    else:
        print_note(
            f"the operator has not written it into Secret {secret} yet"
            f" ({document['message'] or 'it says nothing so far'});"
            f" `gatewayctl keys describe {document['name']}` tells when"
        )


async def _wait_written(cluster: Cluster, name: str) -> Object:
    """The key once the operator has made its secret, or as it is after half a minute."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        obj = await cluster.get(GatewayKey, name)
        if _is_followed(obj) or time.monotonic() > deadline:
            return obj
        await asyncio.sleep(PAUSE_SECONDS)


def _is_followed(obj: Object) -> bool:
    """Whether the operator has written the secret that the spec asks for."""
    status = obj.get("status") or {}
    return bool(status.get("tokens")) and (
        status.get("rotations", 0) >= obj["spec"].get("rotations", 0)
    )
