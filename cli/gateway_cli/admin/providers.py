"""`gatewayctl providers`: upstreams, their readiness and health, and a test call."""

import base64
import binascii
from typing import Annotated

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import describe_health, describe_state
from gateway_cli.admin.objects import KindView
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import Column, Document, Output, print_list
from gateway_cli.session import EXIT_FAILED
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import Object

DIRECT = ("http", "openai", "google")

COLUMNS = (
    Column("NAME", "name"),
    Column("TYPE", "type"),
    Column("READY", "ready"),
    Column("REASON", "reason"),
    Column("HEALTH", "health"),
    Column("CALLS/MIN", "calls_per_minute", right=True),
    Column("ERRORS %", "error_percent", right=True),
    Column("LATENCY MS", "latency_ms", right=True),
    Column("URL", "url"),
)
LINES = (
    Column("Name", "name"),
    Column("Type", "type"),
    Column("URL", "url"),
    Column("Credential", "credentials_secret"),
    Column("Calls at a time", "max_concurrent_requests"),
    Column("Calls a second", "requests_per_second"),
    Column("Ready", "ready"),
    Column("Reason", "reason"),
    Column("Message", "message"),
    Column("Health", "health"),
    Column("  calls a minute", "calls_per_minute"),
    Column("  errors (%)", "error_percent"),
    Column("  latency (ms)", "latency_ms"),
    Column("  first token (ms)", "first_token_ms"),
    Column("Created", "created_at"),
)
TEST_COLUMNS = (
    Column("CREDENTIAL", "credential", right=True),
    Column("RESULT", lambda row: "ok" if row["ok"] else "failed"),
    Column("MS", "milliseconds", right=True),
    Column("CALL", "call"),
    Column("ANSWER", "answer"),
)

app = typer.Typer(add_completion=False, no_args_is_help=True)


def describe_provider(obj: Object) -> Document:
    """A GatewayProvider, without its headers: they may hold what is secret."""
    spec = obj["spec"]
    declared: Document = next((spec[kind] for kind in DIRECT if spec.get(kind)), {})
    return {
        "name": obj["metadata"]["name"],
        "type": spec["type"],
        "url": declared.get("baseUrl"),
        "credentials_secret": spec.get("credentialsSecretRef"),
        "max_concurrent_requests": spec.get("maxConcurrentRequests", 64),
        "requests_per_second": spec.get("requestsPerSecond"),
        **describe_health(obj),
        **describe_state(obj),
    }


VIEW = KindView(GatewayProvider, "provider", describe_provider, COLUMNS, LINES)

ProviderName = Annotated[
    str, typer.Argument(help="A GatewayProvider.", autocompletion=opt.complete_providers)
]


@app.command("list")
def list_providers(namespace: opt.Namespace = None, output: Output = "table") -> None:
    """List the providers with readiness and health."""
    VIEW.print_all(namespace, output)


@app.command()
def describe(
    provider: ProviderName, namespace: opt.Namespace = None, output: Output = "table"
) -> None:
    """Show a provider: its address, limits, readiness and health."""
    VIEW.print_one(provider, namespace, output)


@app.command("test")
def call(provider: ProviderName, namespace: opt.Namespace = None, output: Output = "table") -> None:
    """Make a free call to a provider from this machine, with each of its credentials.

    Types openai and google: the list of models. Type http: a poll of a job that does not exist.
    Reads the provider's Secret. Exit code 1 if a call fails.
    """
    # loaded here: the other commands do without the adapters
    from gateway_cli.admin.provider_calls import call_provider

    async def run(cluster: Cluster) -> list[Document]:
        obj = await cluster.get(GatewayProvider, provider)
        resource = GatewayProvider.read(obj)
        return await call_provider(resource.spec, await _read_credential(cluster, resource))

    results = on_cluster(namespace, run)
    print_list(results, TEST_COLUMNS, output, noun="calls")
    if not all(row["ok"] for row in results):
        raise typer.Exit(EXIT_FAILED)


async def _read_credential(cluster: Cluster, provider: GatewayProvider) -> bytes | None:
    ref = provider.spec.credentials_secret_ref
    if ref is None:
        return None
    data = (await cluster.get_secret(ref.name)).get("data") or {}
    if ref.key not in data:
        raise ClusterError(
            f"Secret {ref.name} has no key {ref.key}, which spec.credentialsSecretRef names; it has"
            f" {', '.join(sorted(data)) or 'none'}"
        )
    try:
        return base64.b64decode(data[ref.key])
    except binascii.Error as error:
        raise ClusterError(f"Secret {ref.name}: {ref.key} is no base64") from error
