"""What one task costs each process in CPU, and what it asks of the API server.

Tasks are made by four clients at once for a provider that takes a second; a round is over when each
has ended and its finalizer is gone. What the processes use idle is measured first and taken off.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from gateway_core.api.ids import FOLDED_LABEL
from gateway_core.api.task import GatewayTask
from gateway_core.kube.lists import list_pages
from gateway_operator.events import BURST, EVENTS_PER_SECOND
from tests.bench.harness import build_call, load_api, read_cpu, read_samples
from tests.bench.report import Report
from tests.servers.world import Client, World

COUNT = int(os.environ.get("BENCH_TASKS", "300"))
ROUNDS = int(os.environ.get("BENCH_TASK_ROUNDS", "3"))
CONCURRENCY = 4
IDLE_SECONDS = 10.0
PROCESSES = ("kube-apiserver", "etcd", "operator", "api", "redis")
PATIENCE = 180.0
LEAST_SHOWN = 0.02
"""Requests a task below which a verb is not worth a line."""


async def measure_task_cost(world: World, key: str, report: Report) -> None:
    """Rounds of `COUNT` tasks; the median of the rounds, with the least and the most."""
    rounds = list[dict[str, float]]()
    async with world.client(key) as client:
        await client.simulate({"behaviour": "seconds", "seconds": "1"})
        await _run(world, client, COUNT // 5)
        idle = await _measure_idle(world)
        before = _count(world)
        for _ in range(ROUNDS):
            rounds.append(await _measure_round(world, client, idle))
        after = _count(world)
    for name in (*PROCESSES, "all"):
        values = sorted(done[name] * 1000 for done in rounds)
        report.add(f"task cost: {name} CPU a task", values[len(values) // 2], "ms")
        report.add(f"task cost: {name}, least round", values[0], "ms")
        report.add(f"task cost: {name}, most", values[-1], "ms")
    await _measure_events(world, rounds, report)
    made = COUNT * ROUNDS
    for name, value in sorted((after - before).items()):
        if value / made >= LEAST_SHOWN:
            report.add(f"task cost: {name}", value / made, "a task")
    size, managed = await _measure_object(world)
    report.add("task cost: ended object", size, "bytes")
    report.add("task cost: of that managedFields", managed, "bytes")
    status = sum(
        value
        for name, value in (after - before).items()
        if name.startswith(("PATCH", "PUT")) and name.endswith("gatewaytasks/status")
    )
    report.add("task cost: status writes a task", status / made, "writes", at_most=2.1)


async def _measure_events(
    world: World, rounds: Sequence[Mapping[str, float]], report: Report
) -> None:
    """What Events may take of the operator's CPU while it works 10,000 tasks on one core."""
    async with world.kube() as kube:
        page = await kube.list_page(GatewayTask.plural, limit=1, metadata_only=True)
    poster = (sys.executable, "-m", "tests.bench.event_poster")
    arguments = (str(world.config.cluster_kubeconfig), world.config.namespace)
    done = await asyncio.create_subprocess_exec(
        *(*poster, *arguments, page.items[0]["metadata"]["name"]), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await done.communicate()
    event = float(output)
    report.add("task cost: CPU of an Event", event * 1000, "ms")
    work = 10_000 * sorted(each["operator"] for each in rounds)[len(rounds) // 2]
    # each reason has a bucket: submitted, waiting, failed, callback given up
    events = 4 * (BURST + EVENTS_PER_SECOND * work)
    share = events * event / work
    report.add("task cost: Events, of the operator's CPU", share * 100, "%", at_most=5.0)


async def _measure_round(
    world: World, client: Client, idle: Mapping[str, float]
) -> dict[str, float]:
    """CPU seconds a task by process beyond what it uses idle, and their sum as `all`."""
    loop = asyncio.get_running_loop()
    before, began = _read_cpu(world), loop.time()
    await _run(world, client, COUNT)
    after, seconds = _read_cpu(world), loop.time() - began
    used = {n: (after[n] - before[n] - idle[n] * seconds) / COUNT for n in PROCESSES}
    return {**used, "all": sum(used.values())}


async def _measure_idle(world: World) -> dict[str, float]:
    """Cores that each process takes while nothing is asked of it."""
    before = _read_cpu(world)
    await asyncio.sleep(IDLE_SECONDS)
    after = _read_cpu(world)
    return {name: (after[name] - before[name]) / IDLE_SECONDS for name in PROCESSES}


async def _run(world: World, client: Client, count: int) -> None:
    """Make so many tasks, and return once the finalizer of each is removed."""
    body = client.body(prompt="what a task costs", duration_seconds=3)
    request = build_call(client.key, "POST", client.tasks_path, body)
    async with world.kube() as kube:

        async def count_open(enough: int) -> int:
            """Return the number of open tasks, or `enough` or more once so many are listed."""
            count = 0
            async for page in list_pages(
                kube,
                GatewayTask.plural,
                limit=enough,
                label_selector=f"!{FOLDED_LABEL}",
                metadata_only=True,
            ):
                count += len(page.items)
                if count >= enough:
                    break
            return count

        # an earlier stage may have left tasks that never end
        others = await count_open(1000)
        await load_api(world, request, count=count, concurrency=CONCURRENCY, status=202)
        # asked seldom: the question costs the API server as much as a write
        deadline = time.monotonic() + PATIENCE
        while True:
            await asyncio.sleep(1.0)
            if await count_open(others + 1) <= others:
                return
            assert time.monotonic() < deadline, f"tasks have not ended in {PATIENCE} s"


def _read_cpu(world: World) -> dict[str, float]:
    return {name: read_cpu(world.run.pid_of(name)) for name in PROCESSES}


def _count(world: World) -> Counter[str]:
    """Requests of the gateway's kinds by verb and resource, and watch events by kind."""
    counts = Counter[str]()
    for name, labels, value in read_samples(world):
        if labels.get("group") not in ("modelgateway.dev", "coordination.k8s.io"):
            continue
        if name == "apiserver_request_total" and labels["verb"] not in ("WATCH", "LIST"):
            path = labels["resource"] + "/" * bool(labels["subresource"]) + labels["subresource"]
            counts[f"{labels['verb']} {path}"] += int(value)
        elif name == "apiserver_watch_events_total":
            kind = labels.get("resource") or labels.get("kind")
            counts[f"watch events of {kind}"] += int(value)
    return counts


async def _measure_object(world: World) -> tuple[int, int]:
    """Bytes of an ended task's object as the API server writes it, and of its managedFields."""
    async with world.kube() as kube:
        page = await kube.list_page(
            GatewayTask.plural, limit=1, field_selector="status.phase=Completed"
        )
    [obj] = page.items
    managed = obj["metadata"].get("managedFields")
    size = len(json.dumps(obj, separators=(",", ":")))
    return size, len(json.dumps(managed, separators=(",", ":"))) if managed else 0
