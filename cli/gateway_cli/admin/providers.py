"""`gatewayctl providers test`: a free call with each credential."""

import typer

from gateway_cli import options as opt
from gateway_cli.admin.table import PROVIDERS
from gateway_cli.cluster.client import Cluster
from gateway_cli.commands import cluster_command
from gateway_cli.output import Column, Document, Format, print_list
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


def show_calls(results: list[Document], output: Format) -> None:
    """Print the calls; the exit code says whether all went well."""
    print_list(results, TEST_COLUMNS, output, noun="calls")
    if not all(row["ok"] for row in results):
        raise typer.Exit(EXIT_FAILED)


@cluster_command(app, show_calls, name="test")
async def call(cluster: Cluster, provider: opt.ProviderName) -> list[Document]:
    """Make a free call to a provider from this machine, with each of its credentials.

    Types openai and google: the list of models. Type http: a poll of a job that does not exist.
    Reads the provider's Secret. Exit code 1 if a call fails.
    """
    # loaded here: the other commands do without the adapters
    from gateway_cli.admin.provider_calls import call_provider

    declared = GatewayProvider.read(await cluster.get(GatewayProvider, provider)).spec
    ref = declared.credentials_secret_ref
    credential = await cluster.read_secret(ref.name, ref.key) if ref else None
    return await call_provider(declared, credential)
