"""`gatewayctl keys`: what opens the API for an account, and how far."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway_cli.admin.amounts import parse_period
from gateway_cli.admin.documents import describe_key
from gateway_cli.admin.figures import complete_budget
from gateway_cli.admin.keymaking import create as create_key
from gateway_cli.admin.keymaking import print_secret
from gateway_cli.admin.limits import BUDGET_LINES, Clearable, merge_given, set_fields, show_limit
from gateway_cli.admin.options import (
    AccountFilter,
    Dollars,
    Expiration,
    KeyName,
    ModelEntries,
    Namespace,
    PepperSecret,
    ProviderEntries,
    RequestsPerMinute,
    SecretsFolder,
    WindowOption,
    Yes,
)
from gateway_cli.admin.session import confirm, on_cluster
from gateway_cli.admin.tokens import find_key_ring, rotate_tokens
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import Column, Output, print_done, print_list, print_one
from gateway_core.contract.key import MOST_OVERLAP_SECONDS, GatewayKey
from gateway_core.contract.limits import subject_of_key
from gateway_core.contract.names import id_to_name

if TYPE_CHECKING:
    from gateway_cli.admin.objects import GatewayObjects

app = typer.Typer(add_completion=False, no_args_is_help=True)
limit_app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="How much a key may spend, and in which window.",
)
app.command("create")(create_key)
app.add_typer(limit_app, name="limit")

COLUMNS = (
    Column("NAME", "name"),
    Column("ACCOUNT", "account"),
    Column("DISPLAY", "display_name"),
    Column("HINT", "hint"),
    Column("STATE", "state"),
    Column("LIMIT", show_limit),
    Column("USED", "used", right=True),
    Column("RESETS", "resets_at"),
    Column("READY", "ready"),
)
LINES = (
    Column("Name", "name"),
    Column("Id", "id"),
    Column("Account", "account"),
    Column("Class", "class"),
    Column("Display name", "display_name"),
    Column("Hint", "hint"),
    Column("State", "state"),
    Column("Made by", "created_by"),
    Column("In Secret", "secret_name"),
    Column("Old secret until", "old_secret_until"),
    Column("Expires", "expires_at"),
    *BUDGET_LINES,
    Column("Last used", "last_used_at"),
    Column("Notes", "metadata"),
    Column("Ready", "ready"),
    Column("Reason", "reason"),
    Column("Message", "message"),
    Column("Created", "created_at"),
)


@app.command("list")
def list_keys(
    account: AccountFilter = None, namespace: Namespace = None, output: Output = "table"
) -> None:
    """All keys, or those of one account, with what they have used as of the last minute."""
    selector = {"spec.accountName": account}
    found = on_cluster(namespace, lambda objects: objects.list_all(GatewayKey, **selector))
    print_list([describe_key(obj) for obj in found], COLUMNS, output, noun="keys")


@app.command()
def describe(key: KeyName, namespace: Namespace = None, output: Output = "table") -> None:
    """One key: what it may do, what it has used of its limit, and when that resets."""

    async def run(objects: "GatewayObjects") -> dict[str, Any]:
        found = await objects.get(GatewayKey, id_to_name(key))
        return await complete_budget(objects, found, subject_of_key(found["metadata"]["name"]))

    print_one(describe_key(on_cluster(namespace, run)), LINES, output)


@app.command("set")
def change(
    key: KeyName,
    display_name: Annotated[str | None, typer.Option(help="Shown in lists.")] = None,
    rpm: RequestsPerMinute = None,
    model: ModelEntries = None,
    provider: ProviderEntries = None,
    expires: Expiration = None,
    clear: Annotated[
        list[Clearable] | None, typer.Option(help="Take a restriction away; may be repeated.")
    ] = None,
    namespace: Namespace = None,
    output: Output = "table",
) -> None:
    """Change what is named; the rest stays. Effective within 5 seconds."""
    given = {
        "displayName": display_name,
        "requestsPerMinute": rpm,
        "allowedModels": model,
        "allowedProviders": provider,
        "expirationTime": expires,
    }
    spec = merge_given(given, clear, GatewayKey)
    _print_changed(set_fields(GatewayKey, id_to_name(key), spec, namespace), "is changed", output)


@limit_app.command("set")
def set_limit(
    key: KeyName,
    amount: Dollars,
    window: WindowOption,
    namespace: Namespace = None,
    output: Output = "table",
) -> None:
    """Let a key spend at most DOLLARS in a window; over it calls are answered 429."""
    spec = {"limit": {"micros": amount, "window": window}}
    changed = set_fields(GatewayKey, id_to_name(key), spec, namespace)
    text = f"may spend {show_limit(describe_key(changed))}"
    _print_changed(changed, text, output)


@limit_app.command("clear")
def clear_limit(key: KeyName, namespace: Namespace = None, output: Output = "table") -> None:
    """Take a key's limit away; those of its guardrails stay."""
    changed = set_fields(GatewayKey, id_to_name(key), {"limit": None}, namespace)
    _print_changed(changed, "has no limit of its own", output)


@app.command()
def disable(key: KeyName, namespace: Namespace = None, output: Output = "table") -> None:
    """Refuse a key until `enable`."""
    changed = set_fields(GatewayKey, id_to_name(key), {"disabled": True}, namespace)
    _print_changed(changed, "is disabled", output)


@app.command()
def enable(key: KeyName, namespace: Namespace = None, output: Output = "table") -> None:
    """Let a disabled key open again."""
    changed = set_fields(GatewayKey, id_to_name(key), {"disabled": False}, namespace)
    _print_changed(changed, "is enabled", output)


@app.command()
def rotate(
    key: KeyName,
    overlap: Annotated[
        int,
        typer.Option(
            parser=parse_period,
            metavar="PERIOD",
            help="How long the old secret opens as well, e.g. 24h; at most 7d.",
        ),
    ] = 0,
    pepper_secret: PepperSecret = None,
    secrets_dir: SecretsFolder = None,
    namespace: Namespace = None,
    output: Output = "table",
) -> None:
    """Give a key a new secret and print it once; limits, usage and history stay.

    Of a key that the operator made, the operator writes the new one into its Secret.
    """
    if overlap > MOST_OVERLAP_SECONDS:
        raise typer.BadParameter("--overlap is at most 7d")

    async def run(objects: "GatewayObjects") -> tuple[dict[str, Any], str | None]:
        name = id_to_name(key)
        spec = _refuse_revoked(await objects.get(GatewayKey, name))["spec"]
        if "secretName" in spec:

            def raise_rotations(obj: dict[str, Any]) -> dict[str, Any]:
                rotations = _refuse_revoked(obj)["spec"].get("rotations", 0) + 1
                return {"spec": {"rotations": rotations, "overlapSeconds": overlap}}

            return await objects.change(GatewayKey, name, raise_rotations), None
        ring = await find_key_ring(objects, pepper_secret, secrets_dir)
        plaintext, token = ring.mint(spec.get("class", "Standard"))
        until = datetime.now(UTC) + timedelta(seconds=overlap) if overlap else None

        def replace(obj: dict[str, Any]) -> dict[str, Any]:
            present = _refuse_revoked(obj)["spec"]["tokens"]
            return {"spec": {"tokens": rotate_tokens(present, token, until)}}

        return await objects.change(GatewayKey, name, replace), plaintext

    changed, plaintext = on_cluster(namespace, run)
    print_secret(changed, plaintext, "has a new secret", output)


@app.command()
def revoke(
    key: KeyName, yes: Yes = False, namespace: Namespace = None, output: Output = "table"
) -> None:
    """Shut a key for good: there is no way back. Its usage stays."""
    confirm(f"Revoke key {key} for good?", yes)
    changed = set_fields(GatewayKey, id_to_name(key), {"revoked": True}, namespace)
    _print_changed(changed, "is revoked", output)


def _refuse_revoked(obj: dict[str, Any]) -> dict[str, Any]:
    if obj["spec"].get("revoked"):
        raise ClusterError(f"key {obj['metadata']['name']} is revoked; make another one")
    return obj


def _print_changed(obj: dict[str, Any], text: str, output: Any) -> None:
    print_done(f"key {obj['metadata']['name']} {text}", describe_key(obj), output)
