"""`gatewayctl install …`: the steps of the chart's hook Jobs."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from gateway_cli.admin.options import Namespace
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.compose import open_cluster
from gateway_cli.install.sharedsecrets import (
    ensure_secret,
    make_redis_content,
    make_secret_key,
    make_webhook_secret,
)
from gateway_cli.install.trial import Trial, run_trial
from gateway_cli.local.errors import LocalRunError
from gateway_cli.progress import Reporter

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
def secrets(
    api_keys: Annotated[str | None, typer.Option(help="Secret of id-key and pepper-1.")] = None,
    media_key: Annotated[str | None, typer.Option(help="Secret of media-key.")] = None,
    redis: Annotated[str | None, typer.Option(help="Secret of password and url.")] = None,
    redis_address: Annotated[str, typer.Option(help="host:port for that url.")] = "",
    token: Annotated[list[str] | None, typer.Option(help="Secret of a random token.")] = None,
    webhook: Annotated[list[str] | None, typer.Option(help="Secret of a whsec_ secret.")] = None,
    namespace: Namespace = None,
) -> None:
    """Create the secrets named that do not exist; those that do are neither read nor changed."""
    reporter = Reporter()
    wanted: dict[str, dict[str, str]] = {}
    if api_keys:
        wanted[api_keys] = {"id-key": make_secret_key(), "pepper-1": make_secret_key()}
    if media_key:
        wanted[media_key] = {"media-key": make_secret_key()}
    if redis:
        wanted[redis] = make_redis_content(redis_address)
    for name in token or ():
        wanted[name] = {"token": make_secret_key()}
    for name in webhook or ():
        wanted[name] = {"secret": make_webhook_secret()}

    async def run() -> None:
        async with open_cluster(namespace) as cluster:
            for name, content in wanted.items():
                made = await ensure_secret(cluster, name, content)
                reporter.line(f"Secret/{name} {'created' if made else 'is there'}")

    with _explained(reporter):
        asyncio.run(run())


@app.command("test")
def run_test(
    base_url: Annotated[str, typer.Option(envvar="GATEWAY_BASE_URL", help="The API.")],
    api_key: Annotated[str, typer.Option(envvar="GATEWAY_API_KEY", help="A key.")],
    model: Annotated[str, typer.Option(help="Its modelId.")],
    service: Annotated[str, typer.Option(help="The model's spec.service.")],
    callback_host: Annotated[
        str | None,
        typer.Option(envvar="GATEWAY_CALLBACK_HOST", help="This pod's address, for a callback."),
    ] = None,
    callback_secret: Annotated[
        str | None,
        typer.Option(envvar="GATEWAY_WEBHOOK_SECRET", help="Checks the callback's signature."),
    ] = None,
) -> None:
    """Run one task from POST to its video, and its callback where a host is given."""
    reporter = Reporter()
    trial = Trial(base_url, service, model, api_key, callback_host, callback_secret)
    with _explained(reporter):
        asyncio.run(run_trial(trial, reporter.line))


@contextlib.contextmanager
def _explained(reporter: Reporter) -> Iterator[None]:
    """Turns the errors a user can act on into text and exit code 1."""
    try:
        yield
    except (ClusterError, LocalRunError) as error:
        reporter.line(f"✗ {error}", style="red")
        raise typer.Exit(1) from error
