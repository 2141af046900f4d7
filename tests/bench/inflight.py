"""A thousand tasks in flight: all end, and what that costs the operator and the apiserver."""

import asyncio
import json
import time
from datetime import datetime

from tests.bench.load import build_request, run_load
from tests.bench.report import Report
from tests.bench.stage import count_requests, cpu_of
from tests.servers.world import TERMINAL, World, list_tasks

TASKS = 1000
DURATION = "20-60"


async def measure_inflight(world: World, key: str, report: Report) -> None:
    """Creates, waits for every end, and reports lag from the provider's end to the client's."""
    writes = {"group": "modelgateway.dev", "resource": "gatewaytasks", "subresource": "status"}
    async with world.client(key) as client:
        await client.simulate({"behaviour": "seconds", "seconds": DURATION})
        before = count_requests(world, **writes)
        known = set(list_tasks(world))
        body = json.dumps(client.body(prompt="in flight", duration_seconds=3)).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        request = build_request("POST", client.tasks_path, headers, body)
        with cpu_of(world.run.run.pid_of("operator")) as operator:
            load = await run_load(
                "127.0.0.1", world.config.ports.api, lambda _: request, count=TASKS, concurrency=16
            )
            assert load.statuses == {202: TASKS}, load.statuses
            tasks = {i: o for i, o in list_tasks(world).items() if i not in known}
            by_uid = {obj["metadata"]["uid"]: task_id for task_id, obj in tasks.items()}
            lags = await _follow(client, by_uid)
        written = count_requests(world, **writes) - before
    report.add("in flight: tasks that ended", len(lags), "tasks", at_least=TASKS)
    report.add("in flight: status writes a task", written / TASKS, "writes", at_most=3.0)
    ordered = sorted(lags)
    report.add("in flight: detection lag p50", ordered[len(ordered) // 2], "s")
    report.add("in flight: detection lag p99", ordered[int(len(ordered) * 0.99)], "s")
    report.add("in flight: operator CPU a task", operator["cpu"] / TASKS * 1000, "ms")
    report.add("in flight: operator memory", operator["rss_mb"], "MB")


async def _follow(client, by_uid: dict[str, str]) -> list[float]:
    """Seconds from each job's end at the provider to the GET that says completed."""
    ends = dict[str, float]()
    lags: list[float] = []
    deadline = time.time() + 180
    while (by_uid or ends) and time.time() < deadline:
        if by_uid:
            jobs = (await client.read_simulator("/control/jobs"))["jobs"]
            for job in jobs:
                task_id = by_uid.pop(job["client_reference"], None)
                if task_id is not None:
                    created = datetime.fromisoformat(job["created_at"]).timestamp()
                    ends[task_id] = created + job["duration"]
        due = [task_id for task_id, end in ends.items() if end <= time.time()]
        for task_id in due:
            answer = await client.poll(task_id)
            if answer.status == 200 and answer.body["status"] in TERMINAL:
                lags.append(time.time() - ends.pop(task_id))
        await asyncio.sleep(0.1 if ends else 1.0)
    return lags
