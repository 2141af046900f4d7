"""`gatewayctl tasks`: users make and follow their own over REST, admins see all of a cluster's."""

from gateway_cli import options as opt
from gateway_cli.admin.fields import Patch
from gateway_cli.admin.table import TASKS, WITH_KUBECTL
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.commands import cluster_command
from gateway_cli.output import Document, Done, show_done
from gateway_cli.rest.tasks import add_commands
from gateway_core.api.conditions import Reason
from gateway_core.api.errors import Conflict
from gateway_core.api.resource import Object
from gateway_core.tasks.delivery import request_redelivery

ENDED = ("Completed", "Failed")

app = TASKS.make_app()
add_commands(app)


@cluster_command(app, show_done, rich_help_panel=WITH_KUBECTL)
async def cancel(cluster: Cluster, task: opt.TaskName) -> Done:
    """Cancel a task and its job, and release its reservation. It may be repeated and is final."""

    def decide(obj: Object) -> Patch | None:
        status = obj.get("status") or {}
        phase = status.get("phase")
        if (status.get("failure") or {}).get("code") == Reason.CANCELLED.code:
            return None
        if phase in ENDED:
            raise ClusterError(f"task {obj['metadata']['name']} has ended: {phase}")
        return {"spec": {"desiredState": "Cancelled"}}

    def describe(shown: Document) -> str:
        return "it was cancelled" if shown["phase"] in ENDED else "it is being cancelled"

    return await TASKS.change(cluster, task, decide, describe)


@cluster_command(app, show_done, rich_help_panel=WITH_KUBECTL)
async def redeliver(cluster: Cluster, task: opt.TaskName) -> Done:
    """Deliver a task's callback again, with the same id and body and a new schedule."""

    def decide(obj: Object) -> Patch:
        try:
            return request_redelivery(obj)
        except Conflict as error:
            raise ClusterError(f"{obj['metadata']['name']}: {error.message}") from error

    return await TASKS.change(cluster, task, decide, "its callback is delivered once more")
