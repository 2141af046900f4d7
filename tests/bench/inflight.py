"""Thousands of tasks in flight on one operator: all end, how soon it is noticed, what it costs.

Run at several sizes, so that what grows with the number of tasks is told from what is there anyway.
"""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate

from gateway_core.api.ids import name_to_id
from gateway_core.api.task import GatewayTask
from gateway_core.kube.informer import Informer
from tests.bench.harness import (
    Usage,
    build_call,
    count_requests,
    in_background,
    load_api,
    watch_usage,
)
from tests.bench.report import Report
from tests.servers.world import TERMINAL, Client, World, list_tasks, wait_for

SIZES = tuple(int(size) for size in os.environ.get("BENCH_INFLIGHT", "500,1500,5000").split(","))
SECONDS = (30, 120)
"""How long the provider takes over a job, drawn evenly."""
AGE_SHARE, LEAST_INTERVAL, JITTER = 0.1, 1.0, 1.1
"""A poll's interval is that share of the task's age, or the least the provider asks for."""
GRACE_SECONDS = 2.0
PATIENCE = 240.0
POLLS = 5000
WRITES = {"group": "modelgateway.dev", "resource": "gatewaytasks", "subresource": "status"}
PROCESSES = ("operator", "api", "kube-apiserver", "etcd", "simulator")


@dataclass
class Round:
    """What came of one size.

    `lags` are seconds from the provider's end to the GET that says so, `excesses` those beyond one
    poll interval; `most` were at once accepted and not seen to have ended, `known` tasks had been
    made at the end; `poll_cost` is the API's CPU seconds for a GET while all were in flight.
    """

    size: int
    lags: list[float] = field(default_factory=list)
    excesses: list[float] = field(default_factory=list)
    writes: float = 0.0
    usage: dict[str, Usage] = field(default_factory=dict)
    created_in: float = 0.0
    refused: int = 0
    most: int = 0
    known: int = 0
    poll_cost: float = 0.0


async def measure_inflight(world: World, key: str, report: Report) -> None:
    """All sizes in turn, the smallest first."""
    rounds = []
    async with world.client(key) as client:
        low, high = SECONDS
        await client.simulate(
            {"behaviour": "stall", "match": {"prompt_contains": "polled"}},
            {"behaviour": "seconds", "seconds": f"{low}-{high}"},
        )
        polled = (await client.create(prompt="polled", duration_seconds=3)).body["id"]
        idle = await _measure_poll(world, client, polled)
        for size in SIZES:
            rounds.append(await _run(world, client, size, polled))
            _tell(report, rounds[-1])
    _tell_growth(report, rounds)
    cost = rounds[-1].poll_cost
    report.add("in flight: API CPU a GET, before", idle * 1e6, "us")
    report.add(f"in flight: API CPU a GET, {rounds[-1].size} in flight", cost * 1e6, "us")
    report.add("in flight: API CPU a GET, in flight over before", cost / idle, "ratio", at_most=1.5)


async def _run(world: World, client: Client, size: int, polled: str) -> Round:
    done = Round(size)
    # the memory of a process that has served another size would be that of both
    for process in ("operator", "api"):
        await asyncio.to_thread(world.run.restart, process, {})
    before = count_requests(world, **WRITES)
    body = client.body(prompt="in flight", duration_seconds=3)
    request = build_call(client.key, "POST", client.tasks_path, body)
    pids = {name: world.run.pid_of(name) for name in PROCESSES}
    known = set(list_tasks(world))
    async with watch_usage(pids) as done.usage, _follow_ends(world, client) as seen:
        load = await load_api(world, request, count=size, concurrency=16)
        done.created_in = load.seconds
        done.refused = size - load.statuses.get(202, 0)
        done.poll_cost = await _measure_poll(world, client, polled)
        with suppress(AssertionError):  # the figures tell of it
            patience, taken = SECONDS[1] + PATIENCE, size - done.refused
            await wait_for(lambda: len(seen) >= taken, seconds=patience, what="every end")
    done.writes = (count_requests(world, **WRITES) - before) / size
    objects = list_tasks(world)
    done.known = len(objects)
    made = {
        task_id: datetime.fromisoformat(obj["metadata"]["creationTimestamp"]).timestamp()
        for task_id, obj in objects.items()
    }
    uids = {obj["metadata"]["uid"]: i for i, obj in objects.items() if i not in known}
    changes = list[tuple[float, int]]()
    for job in (await client.read_simulator("/control/jobs"))["jobs"]:
        task_id = uids.get(job["client_reference"])
        if task_id in seen:
            begin = datetime.fromisoformat(job["created_at"]).timestamp()
            end = begin + job["duration"]
            changes += [(made[task_id], 1), (seen[task_id], -1)]
            lag = seen[task_id] - end
            interval = max(LEAST_INTERVAL, job["duration"] * AGE_SHARE) * JITTER
            done.lags.append(lag)
            done.excesses.append(max(0.0, lag - interval))
    done.most = max(accumulate(step for _, step in sorted(changes)), default=0)
    return done


async def _measure_poll(world: World, client: Client, task_id: str) -> float:
    """The API's CPU seconds for the GET of a task; what else it does meanwhile counts too."""
    request = build_call(client.key, "GET", f"{client.tasks_path}/{task_id}")
    async with watch_usage({"api": world.run.pid_of("api")}) as usage:
        await load_api(world, request, count=POLLS, concurrency=8, status=200)
    return usage["api"].cpu / POLLS


@asynccontextmanager
async def _follow_ends(world: World, client: Client) -> AsyncIterator[dict[str, float]]:
    """When each task's GET first showed its end, in Unix seconds, by task id.

    A watch says when to ask, so that thousands of clients' polls need not be made: an end is
    never in a GET before it is in the record.
    """
    seen = dict[str, float]()
    asking = list[asyncio.Task[None]]()

    async def ask(task_id: str) -> None:
        while True:
            answer = await client.request("GET", f"{client.tasks_path}/{task_id}")
            if answer.status == 200 and answer.body["status"] in TERMINAL:
                assert answer.body["status"] == "completed", answer.body
                seen[task_id] = time.time()
                return
            await asyncio.sleep(0.05)

    async with world.kube() as kube:
        phases = Informer(
            kube, GatewayTask.plural, lambda obj: (obj.get("status") or {}).get("phase")
        )

        def ask_at_end(name: str) -> None:
            if phases.get(name) in ("Completed", "Failed") and name not in asked:
                asked.add(name)
                asking.append(asyncio.create_task(ask(name_to_id(name))))

        async with in_background(phases.run()):
            await phases.wait_synced()
            asked = {name for name, _ in phases.items()}
            phases.subscribe(ask_at_end)
            yield seen
        await asyncio.gather(*asking)


def _tell(report: Report, done: Round) -> None:
    name, size = f"in flight, {done.size}", done.size
    lags, excesses = sorted(done.lags), sorted(done.excesses)
    report.add(f"{name}: tasks that ended", len(lags), "tasks", at_least=size)
    report.add(f"{name}: at once, at most", done.most, "tasks")
    report.add(f"{name}: creates that were refused", done.refused, "creates", at_most=0)
    report.add(f"{name}: created in", done.created_in, "s")
    report.add(f"{name}: status writes a task", done.writes, "writes", at_most=3.0)
    if lags:
        p99 = min(len(lags) - 1, int(len(lags) * 0.99))
        report.add(f"{name}: detection lag p50", statistics.median(lags), "s")
        report.add(f"{name}: detection lag p99", lags[p99], "s")
        excess = excesses[p99]
        report.add(f"{name}: p99 beyond one poll", excess, "s", at_most=GRACE_SECONDS)
    for process, usage in done.usage.items():
        report.add(f"{name}: {process} CPU a task", usage.cpu / size * 1000, "ms")
        report.add(f"{name}: {process} CPU, busiest 5 s", usage.peak_cores, "cores")
        report.add(f"{name}: {process} memory, peak", usage.peak_mb, "MB")


def _tell_growth(report: Report, rounds: list[Round]) -> None:
    """What each further thousand tasks costs; linear where the last step is as the first."""
    if len(rounds) < 2:
        return
    first, last = rounds[0], rounds[-1]
    cpu = [done.usage["operator"].cpu / done.size for done in (first, last)]
    name = f"in flight: operator CPU a task, {last.size} over {first.size}"
    report.add(name, cpu[1] / cpu[0], "ratio", at_most=1.5)
    report.add(
        "in flight: operator memory by 1,000 at once",
        _slope(first.usage["operator"], first.most, last.usage["operator"], last.most),
        "MB",
    )
    report.add(
        "in flight: API memory by 1,000 known",
        _slope(first.usage["api"], first.known, last.usage["api"], last.known),
        "MB",
    )
    if len(rounds) > 2:
        middle = rounds[-2]
        early = _slope(first.usage["operator"], first.most, middle.usage["operator"], middle.most)
        late = _slope(middle.usage["operator"], middle.most, last.usage["operator"], last.most)
        if early > 0:
            name = "in flight: operator memory, late slope over early"
            report.add(name, late / early, "ratio", at_most=2.0)


def _slope(low: Usage, fewer: int, high: Usage, more: int) -> float:
    """MB that a thousand more cost."""
    return (high.peak_mb - low.peak_mb) / max(1, more - fewer) * 1000
