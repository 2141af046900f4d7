"""`gatewayctl tasks`: users make and follow their own over REST, admins see all of a cluster's."""

from gateway_cli import options as opt
from gateway_cli.admin.documents import describe_task
from gateway_cli.admin.fields import Patch
from gateway_cli.admin.table import TASKS, WITH_KUBECTL
from gateway_cli.cluster.client import on_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.output import Output, print_done
from gateway_cli.rest import tasks as rest
from gateway_core.api.errors import Conflict
from gateway_core.api.ids import id_to_name
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.tasks.delivery import request_redelivery

ENDED = ("Completed", "Failed")

app = TASKS.make_app()
rest.add_commands(app)


@app.command(rich_help_panel=WITH_KUBECTL)
def cancel(task: opt.TaskName, namespace: opt.Namespace = None, output: Output = "table") -> None:
    """Cancel a task and its job, and release its reservation. This is final."""

    def decide(obj: Object) -> Patch:
        phase = (obj.get("status") or {}).get("phase")
        if phase in ENDED:
            raise ClusterError(f"task {obj['metadata']['name']} has ended: {phase}")
        return {"spec": {"desiredState": "Cancelled"}}

    TASKS.change(id_to_name(task), decide, "is being cancelled", namespace, output)


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
