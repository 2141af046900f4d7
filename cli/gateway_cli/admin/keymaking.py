"""`gatewayctl keys create`: a key made here, whose secret is shown once, or by the operator."""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway_cli.admin.completion import complete_users
from gateway_cli.admin.documents import describe_key
from gateway_cli.admin.limits import make_limit
from gateway_cli.admin.options import (
    AccountName,
    Expiration,
    LimitDollars,
    LimitWindow,
    ModelEntries,
    Namespace,
    PepperSecret,
    ProviderEntries,
    RequestsPerMinute,
    SecretsFolder,
)
from gateway_cli.admin.session import on_cluster
from gateway_cli.admin.tokens import find_key_ring, name_declared
from gateway_cli.output import Output, print_note, print_one, print_plain
from gateway_core.contract.account import GatewayAccount
from gateway_core.contract.key import KEY_PREFIX, GatewayKey
from gateway_core.contract.keys import KeyClass
from gateway_core.contract.names import ACCOUNT_LABEL
from gateway_core.contract.user import GatewayUser

if TYPE_CHECKING:
    from gateway_cli.admin.objects import GatewayObjects

PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.25


def create(
    account: AccountName,
    display_name: Annotated[str, typer.Option("--name", help="Shown in lists.")] = "Key",
    management: Annotated[
        bool, typer.Option("--management", help="A management key (mk-): it creates no tasks.")
    ] = False,
    created_by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="The GatewayUser with whose role it acts; a member's without one.",
            autocompletion=complete_users,
        ),
    ] = None,
    secret_name: Annotated[
        str | None,
        typer.Option(help="Have the operator make it, and write it into this Secret."),
    ] = None,
    limit: LimitDollars = None,
    window: LimitWindow = None,
    rpm: RequestsPerMinute = None,
    model: ModelEntries = None,
    provider: ProviderEntries = None,
    expires: Expiration = None,
    note: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="A note; may be repeated.")
    ] = None,
    pepper_secret: PepperSecret = None,
    secrets_dir: SecretsFolder = None,
    namespace: Namespace = None,
    output: Output = "table",
) -> None:
    """Make a key of ACCOUNT and print its secret, which is shown this once.

    Standard output has the secret alone: `KEY=$(gatewayctl keys create acme)`.
    """
    key_class: KeyClass = "Management" if management else "Standard"
    spec = {
        "accountName": account,
        "class": key_class,
        "displayName": display_name,
        "createdBy": created_by,
        "secretName": secret_name,
        "limit": make_limit(limit, window),
        "requestsPerMinute": rpm,
        "allowedModels": model,
        "allowedProviders": provider,
        "expirationTime": expires,
        "metadata": _read_notes(note),
    }

    async def run(objects: "GatewayObjects") -> tuple[dict[str, Any], str | None]:
        await objects.get(GatewayAccount, account)
        if created_by is not None:
            await objects.get(GatewayUser, created_by)
        labels = {ACCOUNT_LABEL: account}
        if secret_name is not None:
            name = name_declared(display_name)
            await objects.create(GatewayKey, name, spec, labels=labels)
            return await _wait_written(objects, name), None
        ring = await find_key_ring(objects, pepper_secret, secrets_dir)
        plaintext, token = ring.mint(key_class)
        name = ring.name_object(KEY_PREFIX, account)
        made = await objects.create(GatewayKey, name, {**spec, "tokens": [token]}, labels=labels)
        return made, plaintext

    made, plaintext = on_cluster(namespace, run)
    print_secret(made, plaintext, "is made", output)


def print_secret(obj: dict[str, Any], plaintext: str | None, text: str, output: Any) -> None:
    """The secret on standard output, once and alone; what is around it on standard error.

    Without plaintext the operator has it: where it is is told instead.
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


async def _wait_written(objects: "GatewayObjects", name: str) -> dict[str, Any]:
    """The key once the operator has made its secret, or as it is after half a minute."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        obj = await objects.get(GatewayKey, name)
        if _is_followed(obj) or time.monotonic() > deadline:
            return obj
        await asyncio.sleep(PAUSE_SECONDS)


def _is_followed(obj: dict[str, Any]) -> bool:
    """Whether the operator has written the secret that the spec asks for."""
    status = obj.get("status") or {}
    return bool(status.get("tokens")) and (
        status.get("rotations", 0) >= obj["spec"].get("rotations", 0)
    )


def _read_notes(entries: list[str] | None) -> dict[str, str] | None:
    parts = [entry.partition("=") for entry in entries or ()]
    notes = {name: text for name, _, text in parts}
    if any("=" not in entry or entry.startswith("=") for entry in entries or ()):
        raise typer.BadParameter("a note is written NAME=TEXT")
    return notes or None
