"""The operator under the chart's roles in a namespace that is terminating.

Alone in its file: nothing can be created in the namespace after it.
"""

from tests.servers.tenants import unique
from tests.servers.world import read_task, wait_for


async def test_operator_deletes_its_tasks_while_its_namespace_is_terminating(world, client):
    await client.simulate({"behaviour": "seconds", "seconds": "300"})
    task = await client.create_surely(unique("terminating"))

    def find_job():
        return read_task(world, task).get("status", {}).get("upstream", {}).get("jobId")

    job = await wait_for(find_job, what="a job")
    world.run.kubectl("delete", "namespace", world.config.namespace, "--wait=false")
    name = task.replace("_", "-", 1)

    def is_gone():
        return not world.run.kubectl("get", "gatewaytask", name, "--ignore-not-found")

    # no controller of namespaces runs here: the operator itself has deleted it
    await wait_for(is_gone, seconds=30, what="the end of the task")
    assert job in {entry["job_id"] for entry in (await client.read_simulator())["cancels"]}
