"""`gatewayctl providers test`: a free call with each credential."""

import typer

from gateway_cli import options as opt
from gateway_cli.admin.table import PROVIDERS
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.cluster.secrets import read_secret
from gateway_cli.commands import cluster_command
from gateway_cli.output import Column, Document, Format, print_list, print_note
from gateway_cli.session import EXIT_FAILED
from gateway_core.api.provider import GatewayProvider, ProviderTest, TestOutcome
from gateway_core.api.times import format_time
from gateway_core.kube.clock import CLOCK

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


def judge(results: list[Document], generation: int) -> Document:
    """Return `status.test` of a provider that was called so: the worst of its credentials."""
    bad = [row for row in results if not row["ok"]]
    outcome: TestOutcome = "Failed" if bad else "Succeeded"
    if any(row["refused"] for row in bad):
        outcome = "Refused"
    test = ProviderTest(
        outcome=outcome,
        time=format_time(CLOCK.now()),
        generation=generation,
        message=f"{bad[0]['call']}: {bad[0]['answer']}"[:1000] if bad else None,
    )
    return test.model_dump(by_alias=True)


@cluster_command(app, show_calls, name="test")
async def call(cluster: Cluster, provider: opt.ProviderName) -> list[Document]:
    """Make a free call to a provider from this machine, with each of its credentials.

    Types openai and google: the list of models. Type http: a poll of a job that does not exist.
    Reads the provider's Secret, and records the result in the provider's status, for its Ready
    condition. Exit code 1 if a call fails.
    """
    # loaded here: the other commands do without the adapters
    from gateway_cli.admin.provider_calls import call_provider

    obj = await cluster.get(GatewayProvider, provider)
    declared = GatewayProvider.read(obj).spec
    ref = declared.credentials_secret_ref
    credential = await read_secret(cluster, ref.name, ref.key) if ref else None
    results = await call_provider(declared, credential)
    try:
        status = {"test": judge(results, obj["metadata"]["generation"])}
        await cluster.patch_status(GatewayProvider, obj["metadata"]["name"], status)
    except ClusterError as error:
        print_note(f"the result is not recorded with the provider: {error}")
    return results
