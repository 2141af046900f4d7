"""Starting with 20,000 finished tasks about, against starting with none; and removing them."""

import asyncio
import json
import time
from datetime import UTC, datetime

import psutil

from gateway_core.api.ids import ACCOUNT_LABEL, FOLDED_LABEL, SHARD_LABEL, shard_of
from gateway_core.api.resource import skeleton
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_label_time, format_time
from tests.bench.harness import ACCOUNT
from tests.bench.report import Report
from tests.servers.world import World, wait_for

TASKS = 20_000
AT_ONCE = 32
KEEP = {"GATEWAY_SWEEP_SECONDS": "5"}
REMOVE = {
    "GATEWAY_SWEEP_SECONDS": "1",
    "GATEWAY_RETENTION_TTL_SECONDS": "0",
    "GATEWAY_RETENTION_LEAST_SECONDS": "0",
}


async def measure_retention(world: World, key: str, report: Report) -> None:
    """Restarts operator and API without and with the tasks, then has the tasks removed."""
    bare = {process: await _restart(world, process) for process in ("operator", "api")}
    # nobody is to take the tasks for new ones before they have their end
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


async def create_finished(world: World, count: int) -> None:
    """Tasks as they are once they are archived and folded, of some 3 kB each."""
    now = datetime.now(UTC)
    prompt = "A lighthouse at dawn, waves, gulls. " * 30
    values = json.dumps({"prompt": prompt, "reference_image_urls": ["https://example.com/a.png"]})
    request = {
        "accountName": ACCOUNT,
        "service": "sim",
        "action": "reference_to_video",
        "modelId": "sim-q4",
        "input": values,
        "fingerprint": "f" * 64,
        "reservedMicros": 300_000,
    }
    video = {
        "url": "https://media.example.com/media/x/0/" + "s" * 40,
        "key": "media/x/0",
        "bytes": 1,
        "sha256": "0" * 64,
        "contentType": "video/mp4",
    }
    status = {
        "phase": "Completed",
        "work": "Settled",
        "chargedMicros": 300_000,
        "cost": "0.30",
        "completionTime": format_time(now),
        "upstream": {"providerName": "simulated", "upstreamModel": "q4", "jobId": "job_1"},
        "result": {"videos": [video]},
    }
    numbers = iter(range(count))
    async with world.kube() as kube:

        async def create() -> None:
            for number in numbers:
                name = f"task-finished-{number:06}"
                labels = {
                    ACCOUNT_LABEL: ACCOUNT,
                    SHARD_LABEL: str(shard_of(name)),
                    FOLDED_LABEL: format_label_time(now),
                }
                head = skeleton(GatewayTask, name, labels=labels)
                made = await kube.create(GatewayTask.plural, {**head, "spec": {"request": request}})
                await kube.patch_status(GatewayTask.plural, made, status)

        await asyncio.gather(*(create() for _ in range(AT_ONCE)))
