"""Tool calls over the same calls by REST; calls that wait for their tasks."""

import asyncio
import gc
import statistics
import urllib.request
from collections import Counter
from typing import Any

from tests.bench.harness import build_call, read_mb, watch_growth
from tests.bench.load import run_load
from tests.bench.report import Report
from tests.servers.mcp import HEADERS, McpCaller, describe_task
from tests.servers.replica import Replica
from tests.servers.world import World, wait_for

ROUNDS = 5
COUNT = 400
WAITING = 500
WAITED_SECONDS = 60
"""How long tasks take while their calls wait: all are accepted long before."""


async def measure_mcp(world: World, key: str, report: Report) -> None:
    """Calls one by one, in turn by REST and as a tool; then 500 that wait at once."""
    # the load names this host
    with Replica(world, "mcp", GATEWAY_MCP_ALLOWED_HOSTS="bench") as replica:
        async with world.client(key) as client:
            await _measure_waits(world, key, client, replica, report)
            await _measure_creates(world, key, client, replica, report)
            await _measure_overhead(world, key, client, replica, report)


async def _measure_overhead(
    world: World, key: str, client: Any, replica: Replica, report: Report
) -> None:
    await client.simulate()
    ended = (await client.create(prompt="ends", duration_seconds=3)).body["id"]
    await client.wait_terminal([ended])
    await client.simulate({"behaviour": "stall"})
    api = world.config.ports.api
    task = describe_task(world, "", wait=False)
    body = {**task["params"], "model": task["model"]}
    place = {name: task[name] for name in ("service", "action")}
    balance, path = "/api/v1/me/balance", client.tasks_path
    calls = {
        "get_task": (
            lambda _: build_call(key, "GET", f"{path}/{ended}"),
            lambda _: _use(key, "get_task", {**place, "task_id": ended}),
        ),
        "check_balance": (
            lambda _: build_call(key, "GET", balance),
            lambda _: _use(key, "check_balance", {}),
        ),
        "create_task": (
            lambda n: build_call(key, "POST", path, body, {"Idempotency-Key": f"rest-{n}"}),
            lambda n: _use(key, "create_task", {**task, "idempotency_key": f"mcp-{n}"}),
        ),
    }
    for name, (by_rest, as_tool) in calls.items():
        count = COUNT // 4 if name == "create_task" else COUNT
        rounds: list[tuple[float, float]] = []
        for number in range(ROUNDS):
            medians = []
            for port, make in ((api, by_rest), (replica.port, as_tool)):
                requests = [make(number * count + n) for n in range(count)]
                load = await run_load(port, requests.__getitem__, count=count, concurrency=1)
                assert set(load.statuses) <= {200, 202}, load.statuses
                medians.append(load.percentile(0.5) * 1000)
            rounds.append((medians[0], medians[1]))
        added = statistics.median(tool - rest for rest, tool in rounds)
        report.add(f"mcp: {name} over the same call by REST, p50", added, "ms", at_most=3.0)
        report.add(f"mcp: {name}, p50", statistics.median(t for _, t in rounds), "ms")


def _use(key: str, tool: str, arguments: dict[str, Any]) -> bytes:
    params = {"name": tool, "arguments": arguments}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return build_call(key, "POST", "/mcp", body, HEADERS)


async def _measure_waits(
    world: World, key: str, client: Any, replica: Replica, report: Report
) -> None:
    """Calls that wait for tasks, each on a connection of its own, as different clients'."""
    await client.simulate({"behaviour": "seconds", "seconds": str(WAITED_SECONDS)})
    turns = asyncio.Semaphore(8)

    async def use(number: int, **changes: Any) -> Any:
        return await _create(world, key, replica, f"waits-{number}", **changes)

    async def create(number: int) -> Any:
        async with turns:
            return await use(number, wait=False)

    # the tasks are made before: a burst of creates measures the API server
    await asyncio.gather(*map(create, range(WAITING)))
    gc.collect()
    before = read_mb(replica.pid)
    calls = [asyncio.create_task(use(n)) for n in range(WAITING)]

    def all_wait() -> bool:
        return _read_waiting(replica) == WAITING

    await wait_for(all_wait, seconds=WAITED_SECONDS, what="all calls to wait")
    grown = (read_mb(replica.pid) - before) * 1024
    results = await asyncio.gather(*calls)
    completed = sum(result["completed"] for result in results)
    report.add(f"mcp: {WAITING} waiting calls, memory of each", grown / WAITING, "KiB", at_most=100)
    name = f"mcp: {WAITING} waiting calls, completed"
    report.add(name, completed, "calls", at_least=WAITING)


async def _measure_creates(
    world: World, key: str, client: Any, replica: Replica, report: Report
) -> None:
    """Calls that make their tasks at once, and wait for them: each ends as the only one of its key.

    A call that the gateway refuses for load counts as dropped.
    """
    await client.simulate({"behaviour": "seconds", "seconds": str(WAITED_SECONDS)})
    gc.collect()
    made = [_create(world, key, replica, f"creates-{number}") for number in range(WAITING)]
    began, waited = asyncio.get_running_loop().time(), 0.0
    async with watch_growth(replica.pid) as growth:
        calls = asyncio.gather(*made, return_exceptions=True)
        while not calls.done():
            if not waited and _read_waiting(replica) == WAITING:
                waited = asyncio.get_running_loop().time() - began
            await asyncio.wait({calls}, timeout=0.1)
    results = [each for each in calls.result() if isinstance(each, dict)]
    dropped = [each for each in calls.result() if not isinstance(each, dict)]
    for reason, count in Counter(repr(each)[:300] for each in dropped).most_common(5):
        print(f"dropped: {count} by {reason}")
    ended = {each["task_id"] for each in results if each["completed"]}
    name = f"mcp: {WAITING} calls that create at once"
    report.add(f"{name}, completed", len(ended), "calls", at_least=WAITING)
    report.add(f"{name}, memory of each", growth.mib * 1024 / WAITING, "KiB", at_most=200)
    if waited:
        report.add(f"{name}, until all wait", waited, "s")


async def _create(world: World, key: str, replica: Replica, name: str, **changes: Any) -> Any:
    given = describe_task(world, name, **changes)
    async with McpCaller(replica.base_url, key) as caller:
        return await caller.use("create_task", given)


def _read_waiting(replica: Replica) -> int:
    with urllib.request.urlopen(f"{replica.health_url}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("gateway_mcp_waiting "):
                return int(float(line.split()[1]))
    return 0
