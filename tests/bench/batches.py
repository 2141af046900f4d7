"""A batch of 50,000 lines at what its provider takes: how near the limit, and what it costs.

The lines are judged by the simulator, on the same machine. The operator's loop is watched from
outside: its health answers nobody while something holds it up.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime

import aiohttp
import psutil

from gateway_cli.local.config import MODERATION_MODEL
from gateway_core.api.ids import API_VERSION
from tests.bench.harness import ACCOUNT, count_requests, watch_usage
from tests.bench.report import Report
from tests.servers.world import World, wait_for

LINES = int(os.environ.get("BENCH_BATCH_LINES", "50000"))
A_SECOND = 500
NAME = "batch-bench"
WRITES = {"group": "modelgateway.dev", "resource": "gatewaybatches"}
CHANGES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
PROCESSES = ("operator", "simulator", "kube-apiserver", "etcd")
LOOK_SECONDS = 0.02


async def measure_batches(world: World, key: str, report: Report) -> None:
    """One batch, from the creation of its object to its end."""
    world.patch("gatewayprovider", "simulated-moderation", {"requestsPerSecond": A_SECOND})
    async with world.client(key, ACCOUNT) as client:
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", _write_input(), filename="in.jsonl")
        url = f"{world.env['GATEWAY_BASE_URL']}/v1/files"
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=form, headers=headers) as answer,
        ):
            assert answer.status == 200, await answer.text()
            file_id = (await answer.json())["id"]
        pids = {name: world.run.pid_of(name) for name in PROCESSES}
        idle = psutil.Process(pids["operator"]).memory_info().rss / 2**20
        before = _count_writes(world)
        begun = time.monotonic()
        async with watch_usage(pids) as usage, _watch_loop(world) as stalls:
            kind = {"apiVersion": API_VERSION, "kind": "GatewayBatch"}
            request = {"accountName": ACCOUNT, "inputFileName": file_id}
            world.apply({**kind, "metadata": {"name": NAME}, "spec": {"request": request}})
            status: dict[str, object] = {}

            async def has_ended() -> bool:
                nonlocal status
                text = await asyncio.to_thread(
                    world.run.kubectl, "get", "gatewaybatch", NAME, "-o", "json"
                )
                status = json.loads(text).get("status") or {}
                await asyncio.sleep(0.5)
                return "completionTime" in status

            await wait_for(has_ended, seconds=LINES / A_SECOND * 5 + 120, what="the end")
        seconds = time.monotonic() - begun
        history = await client.read_simulator("/control/moderations?contains=bench%20line")
    times = [
        each[field] for each in history["inputs"].values() for field in ("first_at", "last_at")
    ]
    span = _read_time(max(times)) - _read_time(min(times))
    rate = LINES / span
    counts = status["counts"]
    assert isinstance(counts, dict)
    report.add("batch: lines that completed", counts["completed"], "lines", at_least=LINES)
    report.add("batch: calls a second over the limit", rate / A_SECOND, "ratio", at_least=0.9)
    report.add("batch: from its creation to its end", seconds, "s")
    report.add("batch: outside its run", seconds - span, "s")
    memory = usage["operator"].peak_mb - idle
    report.add("batch: operator memory beyond idle", memory, "MB", at_most=100.0)
    report.add("batch: writes to its object", _count_writes(world) - before, "writes", at_most=60)
    report.add("batch: longest stall of the operator's loop", max(stalls), "s")
    for process, used in usage.items():
        report.add(f"batch: {process} CPU", used.cpu / span, "cores")


def _write_input() -> bytes:
    lines = (
        {
            "custom_id": f"line-{n}",
            "method": "POST",
            "url": "/v1/moderations",
            "body": {"model": MODERATION_MODEL, "input": f"bench line {n}"},
        }
        for n in range(LINES)
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _count_writes(world: World) -> float:
    return sum(count_requests(world, **WRITES, verb=verb) for verb in CHANGES)


def _read_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@asynccontextmanager
async def _watch_loop(world: World) -> AsyncIterator[list[float]]:
    """How long each question after the operator's health took to be answered, in seconds."""
    url, taken = f"http://127.0.0.1:{world.config.ports.operator}/healthz", [0.0]

    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                begun = time.monotonic()
                async with session.get(url) as answer:
                    await answer.read()
                taken.append(time.monotonic() - begun)
                await asyncio.sleep(LOOK_SECONDS)

    asking = asyncio.create_task(ask())
    try:
        yield taken
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
