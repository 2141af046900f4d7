"""A batch of 50,000 lines at what its provider takes: how near the limit, and what it costs.

The lines are judged by the simulator, on the same machine. The operator's loop is watched from
outside: its health answers nobody while something holds it up.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import aiohttp

from gateway_cli.local.config import MODERATION_MODEL
from tests.bench.harness import (
    ACCOUNT,
    Multipart,
    count_requests,
    in_background,
    read_mb,
    watch_usage,
)
from tests.bench.report import Report
from tests.servers.tenants import describe
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
        lines = _write_input()
        form = Multipart(lines, "file", purpose="batch")
        whole = b"".join([block async for block in form.stream(0, len(lines))])
        headers = form.headers(len(lines))
        answer = await client.request("POST", "/v1/files", headers=headers, data=whole)
        file_id = answer.body["id"]
        pids = {name: world.run.pid_of(name) for name in PROCESSES}
        idle = read_mb(pids["operator"])
        before = _count_writes(world)
        begun = time.monotonic()
        async with watch_usage(pids) as usage, _watch_loop(world) as stalls:
            request = {"accountName": ACCOUNT, "inputFileName": file_id}
            world.apply(describe("Batch", NAME, {"request": request}))

            async def read_ended() -> dict[str, Any] | None:
                await asyncio.sleep(0.5)
                batch = await asyncio.to_thread(world.read, "gatewaybatch", NAME)
                status: dict[str, Any] = batch.get("status") or {}
                return status if "completionTime" in status else None

            patience = LINES / A_SECOND * 5 + 120
            status = await wait_for(read_ended, seconds=patience, what="the end")
        seconds = time.monotonic() - begun
        history = await client.read_simulator("/control/moderations?contains=bench%20line")
    times = [
        each[field] for each in history["inputs"].values() for field in ("first_at", "last_at")
    ]
    span = _read_time(max(times)) - _read_time(min(times))
    rate = LINES / span
    counts = status["counts"]
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

    async with in_background(ask()):
        yield taken
