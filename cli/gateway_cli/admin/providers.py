"""`gatewayctl providers test`: a free call with each credential."""

import base64
import binascii

import typer

from gateway_cli import options as opt
from gateway_cli.admin.table import PROVIDERS
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import Column, Document, Output, print_list
from gateway_cli.session import EXIT_FAILED
from gateway_core.api.provider import GatewayProvider

TEST_COLUMNS = (
    Column("CREDENTIAL", "credential", right=True),
    Column("RESULT", lambda row: "ok" if row["ok"] else "failed"),
    Column("MS", "milliseconds", right=True),
    Column("CALL", "call"),
    Column("ANSWER", "answer"),
)

app = PROVIDERS.make_app()


@app.command("test")
def call(
    provider: opt.ProviderName, namespace: opt.Namespace = None, output: Output = "table"
) -> None:
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
