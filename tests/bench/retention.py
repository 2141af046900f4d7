"""Starting with 20,000 finished tasks about, against starting with none; and removing them."""

import asyncio
import json
import time

from tests.bench.harness import restart
from tests.bench.history import create_finished
from tests.bench.report import Report
from tests.servers.world import World, wait_for

TASKS = 20_000
PROCESSES: dict[str, dict[str, str]] = {"operator": {"GATEWAY_SWEEP_SECONDS": "5"}, "api": {}}
REMOVE = {
    "GATEWAY_SWEEP_SECONDS": "1",
    "GATEWAY_RETENTION_TTL_SECONDS": "0",
    "GATEWAY_RETENTION_LEAST_SECONDS": "0",
}


async def measure_retention(world: World, key: str, report: Report) -> None:
    """Restarts operator and API without and with the tasks, then has the tasks removed."""
    bare = {name: await restart(world, name, 5, env) for name, env in PROCESSES.items()}
    # the operator must not adopt the tasks before their status is written
    await asyncio.to_thread(world.run.kill, "operator")
    await create_finished(world, TASKS)
    full = {name: await restart(world, name, 5, env) for name, env in PROCESSES.items()}
    for process in PROCESSES:
        empty, many = bare[process], full[process]
        name = f"retention: {process}"
        report.add(f"{name} ready, no finished task", empty.seconds, "s")
        report.add(f"{name} ready, 20,000", many.seconds, "s", at_most=empty.seconds + 5.0)
        report.add(f"{name} memory, no finished task", empty.mb, "MB")
        report.add(f"{name} memory, 20,000", many.mb, "MB", at_most=empty.mb + 100)
    begin = time.monotonic()
    world.run.restart("operator", REMOVE)
    await wait_for(lambda: _count(world) == 0, what="the removal", seconds=600)
    report.add("retention: removed", TASKS / (time.monotonic() - begin), "tasks/s")
    world.run.restart("operator", {})


def _count(world: World) -> int:
    namespace = world.config.namespace
    path = f"/apis/modelgateway.dev/v1alpha1/namespaces/{namespace}/gatewaytasks?limit=1"
    page = json.loads(world.run.kubectl("get", "--raw", path))
    return len(page["items"]) + (page["metadata"].get("remainingItemCount") or 0)
