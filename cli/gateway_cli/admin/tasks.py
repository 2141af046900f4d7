"""`gatewayctl tasks`: users make and follow their own over REST, admins see all of a cluster's."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import describe_task
from gateway_cli.admin.objects import KindView, Patch
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import (
    Column,
    Document,
    Output,
    RowPrinter,
    print_done,
    print_list,
    print_note,
)
from gateway_cli.rest import tasks as rest
from gateway_core.api.errors import Conflict
from gateway_core.api.ids import id_to_name
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_time
from gateway_core.tasks.delivery import request_redelivery

NEW = "Pending"
"""Shown for a task that has no phase yet."""
Phase = Literal["Pending", "Submitting", "Running", "Completed", "Failed"]
ENDED = ("Completed", "Failed")

COLUMNS = (
    Column("NAME", "name"),
    Column("ACCOUNT", "account"),
    Column("MODEL", "model"),
    Column("PHASE", lambda task: task["phase"] or NEW),
    Column("ERROR", "error_code"),
    Column("COST", "cost", right=True),
    Column("CALLBACK", "callback_state"),
    Column("CREATED", "created_at"),
)
LINES = (
    Column("Name", "name"),
    Column("Id", "id"),
    Column("Account", "account"),
    Column("Key", "key"),
    Column("Operation", "operation"),
    Column("Model", "model"),
    Column("Phase", lambda task: task["phase"] or NEW),
    Column("Error", "error_code"),
    Column("  says", "error"),
    Column("Cost (USD)", "cost"),
    Column("Provider", "provider"),
    Column("Job there", "job"),
    Column("Videos", "videos"),
    Column("Callback", "callback_state"),
    Column("  attempts", "callback_attempts"),
    Column("  last answer", "callback_last_answer"),
    Column("  next at", "callback_next_at"),
    Column("Created", "created_at"),
    Column("Finished", "finished_at"),
)


VIEW = KindView(GatewayTask, "task", describe_task, COLUMNS, LINES)
WITH_KEY = "With an API key, over REST (GATEWAY_BASE_URL, GATEWAY_API_KEY)"
WITH_KUBECTL = "With kubectl credentials"

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command("create", rich_help_panel=WITH_KEY)(rest.create)
app.command("get", rich_help_panel=WITH_KEY)(rest.get)
app.command("wait", rich_help_panel=WITH_KEY)(rest.wait)


@app.command("list", rich_help_panel=WITH_KUBECTL)
def list_tasks(
    account: opt.AccountFilter = None,
    phase: Annotated[Phase | None, typer.Option(help="Only in this phase.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Only of this model.", autocompletion=opt.complete_models),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="Only at this provider.", autocompletion=opt.complete_providers),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Only of this key.", autocompletion=opt.complete_keys)
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            parser=opt.parse_period, metavar="PERIOD", help="Only created within e.g. 15m or 24h."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of tasks.")] = 100,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Then print each change, until Ctrl-C.")
    ] = False,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """List tasks with objects, newest first: all open ones, and recently ended ones."""
    selector = {
        "spec.request.accountName": account,
        "spec.request.modelId": model,
        "status.upstream.providerName": provider,
        "status.phase": "" if phase == NEW else phase,
    }
    after = None if since is None else format_time(datetime.now(UTC) - timedelta(seconds=since))

    def choose(found: Iterable[Object]) -> list[Document]:
        """The tasks that are asked for, newest first."""
        documents = [
            task
            for task in map(describe_task, found)
            if (key is None or task["key"] == id_to_name(key))
            and (after is None or (task["created_at"] or "") >= after)
        ]
        return sorted(documents, key=lambda task: task["created_at"] or "", reverse=True)

    if not watch:
        found = on_cluster(namespace, lambda cluster: cluster.list_all(GatewayTask, **selector))
        chosen = choose(found)
        print_list(chosen[:limit], COLUMNS, output, noun="tasks")
        _note_rest(len(chosen), limit)
        return

    async def follow(cluster: Cluster) -> None:
        printer, shown = RowPrinter(COLUMNS, output), dict[str, Document]()
        is_first = True
        async for found, gone in cluster.follow(GatewayTask, **selector):
            for name in gone:
                shown.pop(name, None)
            changed = [task for task in choose(found) if shown.get(task["name"]) != task]
            shown.update((task["name"], task) for task in changed)
            if is_first:
                _note_rest(len(changed), limit)
                changed, is_first = changed[:limit], False
            printer.print(changed)

    on_cluster(namespace, follow, interrupted="")


def _note_rest(found: int, limit: int) -> None:
    if found > limit:
        print_note(f"there are {found - limit} more: --limit shows them")


@app.command(rich_help_panel=WITH_KUBECTL)
def describe(task: opt.TaskName, namespace: opt.Namespace = None, output: Output = "table") -> None:
    """Show a task: its progress, its error, and its callback."""
    VIEW.print_one(id_to_name(task), namespace, output)


@app.command(rich_help_panel=WITH_KUBECTL)
def cancel(task: opt.TaskName, namespace: opt.Namespace = None, output: Output = "table") -> None:
    """Cancel a task and its job, and release its reservation. This is final."""

    def decide(obj: Object) -> Patch:
        phase = (obj.get("status") or {}).get("phase")
        if phase in ENDED:
            raise ClusterError(f"task {obj['metadata']['name']} has ended: {phase}")
        return {"spec": {"desiredState": "Cancelled"}}

    VIEW.change(id_to_name(task), decide, "is being cancelled", namespace, output)


@app.command(rich_help_panel=WITH_KUBECTL)
def redeliver(
    task: opt.TaskName, namespace: opt.Namespace = None, output: Output = "table"
) -> None:
    """Deliver a task's callback again, with the same id and body and a new schedule."""

    def decide(obj: Object) -> Patch:
        try:
            return request_redelivery(obj)
        except Conflict as error:
            raise ClusterError(f"{obj['metadata']['name']}: {error.message}") from error

    name = id_to_name(task)
    changed = on_cluster(namespace, lambda cluster: cluster.change(GatewayTask, name, decide))
    print_done(f"the callback of {name} is delivered once more", describe_task(changed), output)
