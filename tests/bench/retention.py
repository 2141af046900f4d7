"""Starting with 20,000 finished tasks about, against starting with none; and removing them."""

import asyncio
import json
import time

import psutil

from tests.bench.history import create_finished
from tests.bench.report import Report
from tests.servers.world import World, wait_for

TASKS = 20_000
KEEP = {"GATEWAY_SWEEP_SECONDS": "5"}
REMOVE = {
    "GATEWAY_SWEEP_SECONDS": "1",
    "GATEWAY_RETENTION_TTL_SECONDS": "0",
    "GATEWAY_RETENTION_LEAST_SECONDS": "0",
}


async def measure_retention(world: World, key: str, report: Report) -> None:
    """Restarts operator and API without and with the tasks, then has the tasks removed."""
    bare = {process: await _restart(world, process) for process in ("operator", "api")}
    # the operator must not adopt the tasks before their status is written
    await asyncio.to_thread(world.run.kill, "operator")
    await create_finished(world, TASKS)
    full = {process: await _restart(world, process) for process in ("operator", "api")}
    for process in ("operator", "api"):
        (empty_s, empty_mb), (seconds, mb) = bare[process], full[process]
        report.add(f"retention: {process} ready, no finished task", empty_s, "s")
        report.add(f"retention: {process} ready, 20,000", seconds, "s", at_most=empty_s + 5.0)
        report.add(f"retention: {process} memory, no finished task", empty_mb, "MB")
        report.add(f"retention: {process} memory, 20,000", mb, "MB", at_most=empty_mb + 100)
    begin = time.monotonic()
    world.run.restart("operator", REMOVE)
    await wait_for(lambda: _count(world) == 0, what="the removal", seconds=600)
    report.add("retention: removed", TASKS / (time.monotonic() - begin), "tasks/s")
    world.run.restart("operator", {})


async def _restart(world: World, process: str) -> tuple[float, float]:
    """Seconds until it is ready again, and megabytes once it has been for five seconds."""
    begin = time.monotonic()
    await asyncio.to_thread(world.run.restart, process, KEEP if process == "operator" else {})
    seconds = time.monotonic() - begin
    await asyncio.sleep(5)
    memory = psutil.Process(world.run.pid_of(process)).memory_info().rss / 2**20
    return seconds, memory


def _count(world: World) -> int:
    listed = world.run.kubectl("get", "--raw", _first_page(world))
    page = json.loads(listed)
    return len(page["items"]) + (page["metadata"].get("remainingItemCount") or 0)


def _first_page(world: World) -> str:
    namespace = world.config.namespace
    return f"/apis/modelgateway.dev/v1alpha1/namespaces/{namespace}/gatewaytasks?limit=1"
