"""Shared parts of the stages: an unlimited account, calls, counters, CPU and memory."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.bench.load import Load, build_request, run_load
from tests.bench.report import ROOT
from tests.servers.tenants import describe_account, describe_key
from tests.servers.world import World, wait_for

ACCOUNT = "bench"
BLOCK = 256 * 1024
"""Bytes that are read and sent at a time."""
GRACE_SECONDS = 10
_SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def make_bench_key(world: World) -> str:
    """Return the plaintext of a key of an unlimited account."""
    key, obj = describe_key(world, ACCOUNT)
    world.apply(describe_account(ACCOUNT, unlimited=True, requestsPerMinute=1_000_000), obj)
    return key.plaintext


def build_call(
    key: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes of a call with a key, and a JSON body if one is given."""
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
    """Send a call `count` times, or `call(number)` each time; all answers have `status`."""
    port = world.config.ports.api
    load = await run_load(port, call, count=count, concurrency=concurrency)
    assert status is None or load.statuses == {status: count}, load.statuses
    return load


def read_samples(world: World) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of the labelled metrics of kube-apiserver."""
    for line in world.run.kubectl("get", "--raw", "/metrics").splitlines():
        if sample := _SAMPLE.match(line):
            yield sample[1], dict(_LABEL.findall(sample[2])), float(sample[3])


def count_requests(world: World, **labels: str) -> float:
    """Return how many requests with these labels kube-apiserver has counted."""
    return sum(
        value
        for name, has, value in read_samples(world)
        if name == "apiserver_request_total" and labels.items() <= has.items()
    )


def end_operator(world: World) -> None:
    """End the operator, which would share the machine with what is measured."""
    if world.is_alive("operator"):
        world.run.kill("operator")


def read_cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def read_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return float(psutil.Process(pid).memory_info().rss) / 2**20


@dataclass(frozen=True)
class Start:
    """A start of a process: seconds until it is ready, CPU seconds and MiB once it has settled."""

    seconds: float
    cpu: float
    mb: float


async def restart(world: World, process: str, settle: float, env: Mapping[str, str]) -> Start:
    """Restart a process and let it settle for some seconds."""
    begin = time.monotonic()
    await asyncio.to_thread(world.run.restart, process, dict(env))
    seconds = time.monotonic() - begin
    await asyncio.sleep(settle)
    pid = world.run.pid_of(process)
    return Start(seconds, read_cpu(pid), read_mb(pid))


async def do_all(work: Iterable[Coroutine[Any, Any, Any]], at_once: int) -> None:
    """Run coroutines, so many at a time."""
    left = iter(work)

    async def take() -> None:
        for coroutine in left:
            await coroutine

    await asyncio.gather(*(take() for _ in range(at_once)))


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run endless work over the block; raises its error where it ends."""
    running = asyncio.create_task(work)
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@dataclass
class Growth:
    """By how many MiB a process has grown at most."""

    mib: float = 0.0


@asynccontextmanager
async def watch_growth(pid: int) -> AsyncIterator[Growth]:
    """Sample the growth of a process's memory over the block every 20 ms."""
    growth, before = Growth(), read_mb(pid)

    async def sample() -> None:
        while True:
            growth.mib = max(growth.mib, read_mb(pid) - before)
            await asyncio.sleep(0.02)

    async with in_background(sample()):
        yield growth


@dataclass
class Usage:
    """What a process used: CPU seconds, the most cores in any 5 s, and its largest memory in MB."""

    cpu: float = 0.0
    peak_cores: float = 0.0
    peak_mb: float = 0.0


@asynccontextmanager
async def watch_usage(pids: Mapping[str, int]) -> AsyncIterator[dict[str, Usage]]:
    """Sample what processes use over the block, by name."""
    usage = {name: Usage() for name in pids}
    before = {name: read_cpu(pid) for name, pid in pids.items()}

    async def sample() -> None:
        seen_at, seen = time.monotonic(), dict(before)
        while True:
            await asyncio.sleep(0.5)
            for name, pid in pids.items():
                usage[name].peak_mb = max(usage[name].peak_mb, read_mb(pid))
            passed = time.monotonic() - seen_at
            if passed >= 5:
                now = {name: read_cpu(pid) for name, pid in pids.items()}
                for name in pids:
                    cores = (now[name] - seen[name]) / passed
                    usage[name].peak_cores = max(usage[name].peak_cores, cores)
                seen_at, seen = time.monotonic(), now

    async with in_background(sample()):
        yield usage
    for name, pid in pids.items():
        usage[name].cpu = read_cpu(pid) - before[name]


@contextmanager
def run(*command: str, log: Path | None = None, **env: str) -> Iterator[None]:
    """Run a server as long as the context. `log` gets its output."""
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("wb"))
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@asynccontextmanager
async def serve_bare(name: str, port: int, *arguments: str, **env: str) -> AsyncIterator[str]:
    """Run one of `bare_servers`; yields its address once it listens."""

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    module = (sys.executable, "-m", "tests.bench.bare_servers", name, str(port))
    with run(*module, *arguments, **env):
        await wait_for(listens, what=name)
        yield f"http://127.0.0.1:{port}"


async def time_work(work: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    await work()
    return time.perf_counter() - begin


class Multipart:
    """A multipart body around bytes of a content, cheap to send. `name` is the last field's."""

    def __init__(self, content: bytes, name: str, **fields: str) -> None:
        self._content = content
        parts = [f'name="{field}"\r\n\r\n{value}\r\n' for field, value in fields.items()]
        parts.append(f'name="{name}"; filename="a"\r\n\r\n')
        start = "--benchmark\r\nContent-Disposition: form-data; "
        self._head = "".join(start + part for part in parts).encode()
        self._tail = b"\r\n--benchmark--\r\n"

    def headers(self, size: int) -> dict[str, str]:
        """Return the headers of a body with `size` bytes of the content."""
        return {
            "Content-Type": "multipart/form-data; boundary=benchmark",
            "Content-Length": str(len(self._head) + size + len(self._tail)),
        }

    async def stream(self, start: int, size: int) -> AsyncIterator[bytes]:
        yield self._head
        async for block in cut(memoryview(self._content)[start : start + size]):
            yield block
        yield self._tail


async def cut(content: bytes | memoryview) -> AsyncIterator[bytes]:
    for start in range(0, len(content), BLOCK):
        yield bytes(content[start : start + BLOCK])
