"""What the benchmarks share: a running gateway, an unlimited account, the apiserver's counters."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from tests.bench.load import Load, build_request, run_load
from tests.servers.tenants import describe_account, describe_key
from tests.servers.world import World

ACCOUNT = "bench"


def make_bench_key(world: World) -> str:
    """The plaintext of a key of an unlimited account."""
    key, obj = describe_key(world, ACCOUNT)
    world.apply(describe_account(ACCOUNT, unlimited=True, requestsPerMinute=1_000_000), obj)
    return key.plaintext


def build_call(
    key: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """The bytes of a call with a key, and a JSON body if one is given."""
    sent = {"Authorization": f"Bearer {key}", **(headers or {})}
    if body is None:
        return build_request(method, path, sent)
    sent["Content-Type"] = "application/json"
    return build_request(method, path, sent, json.dumps(body).encode())


async def load_api(
    world: World,
    call: bytes | Callable[[int], bytes],
    *,
    count: int,
    concurrency: int,
    status: int | None = None,
) -> Load:
    """Sends a call `count` times, or `call(number)` each time; all answers have `status`."""
    make = call if callable(call) else lambda _: call
    port = world.config.ports.api
    load = await run_load("127.0.0.1", port, make, count=count, concurrency=concurrency)
    assert status is None or load.statuses == {status: count}, load.statuses
    return load


def count_requests(world: World, **labels: str) -> float:
    """Requests the apiserver has counted with these labels."""
    text = world.run.kubectl("get", "--raw", "/metrics")
    total = 0.0
    for line in text.splitlines():
        if not line.startswith("apiserver_request_total{"):
            continue
        if all(f'{name}="{value}"' in line for name, value in labels.items()):
            total += float(re.split(r"\s+", line)[-1])
    return total


def end_operator(world: World) -> None:
    """Ends the operator, which would share the machine with what is measured."""
    if world.is_alive("operator"):
        world.run.kill("operator")


def read_cpu(pid: int) -> float:
    """CPU seconds that a process has used."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


@dataclass
class Growth:
    """By how many MiB a process has grown at most."""

    mib: float = 0.0


@asynccontextmanager
async def watch_growth(pid: int) -> AsyncIterator[Growth]:
    """The growth of a process's memory over the block, looked at every 20 ms."""
    process, growth = psutil.Process(pid), Growth()
    before = process.memory_info().rss

    async def look() -> None:
        while True:
            growth.mib = max(growth.mib, (process.memory_info().rss - before) / 2**20)
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    try:
        yield growth
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


@dataclass
class Usage:
    """What a process used: CPU seconds, the most cores in any 5 s, and its largest memory in MB."""

    cpu: float = 0.0
    peak_cores: float = 0.0
    peak_mb: float = 0.0


@asynccontextmanager
async def watch_usage(pids: Mapping[str, int]) -> AsyncIterator[dict[str, Usage]]:
    """What processes use over the block, by name."""
    usage = {name: Usage() for name in pids}
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    before = {name: read_cpu(pid) for name, pid in pids.items()}

    async def sample() -> None:
        seen_at, seen = time.monotonic(), dict(before)
        while True:
            await asyncio.sleep(0.5)
            for name, process in processes.items():
                memory = process.memory_info().rss / 2**20
                usage[name].peak_mb = max(usage[name].peak_mb, memory)
            passed = time.monotonic() - seen_at
            if passed >= 5:
                now = {name: read_cpu(pid) for name, pid in pids.items()}
                for name in pids:
                    cores = (now[name] - seen[name]) / passed
                    usage[name].peak_cores = max(usage[name].peak_cores, cores)
                seen_at, seen = time.monotonic(), now

    sampling = asyncio.create_task(sample())
    try:
        yield usage
    finally:
        sampling.cancel()
        for name, pid in pids.items():
            usage[name].cpu = read_cpu(pid) - before[name]
