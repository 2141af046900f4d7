"""`gatewayctl install …`: the installation's secrets, a test of it all, and its removal."""

import asyncio
import secrets as random
from typing import Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import dollars
from gateway_cli.admin.tokens import SECRET_LABELS, make_secret_key, make_webhook_secret
from gateway_cli.cluster.client import open_cluster
from gateway_cli.cluster.secrets import ensure_secret
from gateway_cli.install.trial import Trial, check_calls, check_readiness, run_trial
from gateway_cli.output import Output, count, print_done, print_note, print_plain
from gateway_cli.rest.client import RestApi
from gateway_cli.session import EXIT_FAILED, confirm, exit_on_error

PATIENCE_SECONDS = 60.0
OPERATOR_SECONDS = 90
"""The operator keeps the file of a batch for 60 s after its deletion."""

app = typer.Typer(add_completion=False, cls=opt.CommandGroup, no_args_is_help=True)


@app.command()
def secrets(
    api_keys: Annotated[str | None, typer.Option(help="Secret of id-key and pepper-1.")] = None,
    media_key: Annotated[str | None, typer.Option(help="Secret of media-key.")] = None,
    redis: Annotated[str | None, typer.Option(help="Secret of password and url.")] = None,
    redis_address: Annotated[str, typer.Option(help="host:port for that url.")] = "",
    token: Annotated[list[str] | None, typer.Option(help="Secret of a random token.")] = None,
    webhook: Annotated[list[str] | None, typer.Option(help="Secret of a whsec_ secret.")] = None,
    namespace: opt.Namespace = None,
) -> None:
    """Create the named secrets that do not exist; existing ones are neither read nor changed."""
    # the Job may create Secrets and read none; they are no part of the Helm release, so neither an
    # upgrade nor an uninstall touches them
    wanted: dict[str, dict[str, str]] = {}
    if api_keys:
        wanted[api_keys] = {"id-key": make_secret_key(), "pepper-1": make_secret_key()}
    if media_key:
        wanted[media_key] = {"media-key": make_secret_key()}
    if redis:
        password = random.token_hex(32)
        wanted[redis] = {"password": password, "url": f"redis://:{password}@{redis_address}/0"}
    for name in token or ():
        wanted[name] = {"token": make_secret_key()}
    for name in webhook or ():
        wanted[name] = {"secret": make_webhook_secret()}

    async def run() -> None:
        async with open_cluster(namespace, patience=PATIENCE_SECONDS) as cluster:
            for name, content in wanted.items():
                made = await ensure_secret(cluster, name, content, SECRET_LABELS)
                print_plain(f"Secret/{name} {'created' if made else 'unchanged'}")

    with exit_on_error(exit_code=EXIT_FAILED):
        asyncio.run(run())


@app.command()
def remove(
    yes: opt.Yes = False,
    keep_crds: Annotated[
        bool, typer.Option("--keep-crds", help="Leave the CRDs, which the cluster shares.")
    ] = False,
    wait: Annotated[
        int,
        typer.Option(
            parser=opt.parse_period,
            metavar="PERIOD",
            help="How long the operator may be without progress before its part is done from here.",
        ),
    ] = OPERATOR_SECONDS,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Remove a gateway: stop intake, cancel running jobs, delete all objects, then the CRDs.

    It works with and without an operator, also where the namespace or the CRDs are being deleted
    already. Exit code 1 where a job may run on at a provider.
    """
    from gateway_cli.install.removal import InstallationRemoval

    async def run() -> dict[str, Any]:
        async with open_cluster(namespace) as cluster:
            removal = InstallationRemoval(cluster, wait, print_note)
            counts = await removal.count()
            found = ", ".join(f"{number} {plural}" for plural, number in counts.items())
            place = f"namespace {cluster.namespace} of {cluster.server}"
            confirm(f"Delete the gateway in {place}: {found or 'no objects'}?", yes)
            return (await removal.run(crds=not keep_crds)).show()

    with exit_on_error(exit_code=EXIT_FAILED):
        outcome = asyncio.run(run())
    left = outcome["jobsLeft"]
    text = f"{count(sum(outcome['deleted'].values()), 'object')} deleted; CRDs: {outcome['crds']}"
    print_done(text, outcome, output)
    if output == "table":
        for account, micros in outcome["uncountedMicros"].items():
            print_note(f"! {dollars(micros)} USD of account {account} were added to no usage")
        for name in outcome["remains"]:
            print_note(f"remains: {name}")
        print_note("The object store keeps what was archived: docs/install.md, Remove everything.")
    if left:
        raise typer.Exit(EXIT_FAILED)


@app.command("test")
def run_test(
    base_url: Annotated[str, typer.Option(envvar="GATEWAY_BASE_URL", help="The API.")],
    api_key: Annotated[
        str | None,
        typer.Option(envvar="GATEWAY_API_KEY", help="A key; without one only readiness is tested."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The modelId of a task to run; it costs money.")
    ] = None,
    service: Annotated[str | None, typer.Option(help="The model's spec.service.")] = None,
    callback_host: Annotated[
        str | None,
        typer.Option(envvar="GATEWAY_CALLBACK_HOST", help="This pod's address for a callback."),
    ] = None,
    callback_secret: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_WEBHOOK_SECRET", help="Secret that verifies the callback's signature."
        ),
    ] = None,
) -> None:
    """Check readiness, the key, a free call and the store; with --model also run one task.

    The task is followed from POST to its video, and to its callback if a host is given.
    """
    if (model is None) != (service is None) or (model and not api_key):
        raise typer.BadParameter("--model, --service and --api-key are given together")

    async def run() -> None:
        async with RestApi(base_url, api_key or "", print_plain) as api:
            await check_readiness(api, print_plain)
            if not api_key:
                print_plain("no key is given: neither a call nor the store was tested")
                return
            await check_calls(api, print_plain)
            if model is not None and service is not None:
                trial = Trial(service, model, callback_host, callback_secret)
                await run_trial(trial, api, print_plain)

    with exit_on_error(exit_code=EXIT_FAILED):
        asyncio.run(run())
