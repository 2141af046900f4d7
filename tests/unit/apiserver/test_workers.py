"""The parent of several API workers, with real processes in their place."""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway_apiserver.workers import parent as module
from gateway_apiserver.workers.listeners import listen_shared, reserve_port
from gateway_apiserver.workers.metrics import merge_expositions
from gateway_apiserver.workers.parent import Parent
from tests.servers.world import wait_for


class Pod:
    """A parent that runs as a task."""

    def __init__(self, parent: Parent) -> None:
        self.parent = parent
        self.run = asyncio.create_task(parent.run())

    async def read(self, name: str, label: str = "worker") -> dict[str, float]:
        """The values of a metric by a label, of samples that have it."""
        text = (await self.parent.read_metrics()).decode()
        return {
            sample.labels[label]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and label in sample.labels
        }

    async def wait_pids(self, count: int) -> dict[str, int]:
        """The processes of the workers by number, once so many answer."""

        async def look() -> dict[str, float]:
            found = await self.read("pid")
            return found if len(found) == count else {}

        pids = await wait_for(look, what=f"{count} workers")
        return {number: int(pid) for number, pid in pids.items()}

    async def wait_ready(self) -> None:
        await wait_for(self.parent.is_ready, what="readiness")


StartPod = Callable[..., AbstractAsyncContextManager[Pod]]


@pytest.fixture
def start_pod(tmp_path: Path) -> StartPod:
    """Runs a parent whose workers are of these kinds, in the order of their starts."""

    @asynccontextmanager
    async def start(*kinds: str, count: int = 2, leave_seconds: float = 10) -> AsyncIterator[Pod]:
        command = (sys.executable, "-m", "tests.fakes.worker", str(tmp_path), *kinds)
        pod = Pod(Parent(command, count, leave_seconds))
        try:
            yield pod
        finally:
            pod.parent.leave(signal.SIGKILL)
            await asyncio.gather(pod.run, return_exceptions=True)
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                asyncio.get_running_loop().remove_signal_handler(each)

    return start


async def test_killed_worker_is_restarted_and_counted_while_the_other_serves(
    start_pod: StartPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_pod("steady") as pod:
        before = await pod.wait_pids(2)
        await pod.wait_ready()
        os.kill(before["0"], signal.SIGKILL)
        await wait_for(lambda: not psutil.pid_exists(before["0"]), what="its end")
        assert pod.parent.is_ready()
        assert await pod.read("pid") == {"1": before["1"]}
        after = await pod.wait_pids(2)
        assert after["1"] == before["1"]
        assert after["0"] != before["0"]
        failures = await pod.read("gateway_unexpected_failures_total", "loop")
        assert failures == {"worker_0": 1}
        # a worker that waits for its restart delays no end
        monkeypatch.setattr("gateway_core.concurrency.back_off", lambda *_, **__: 60.0)
        os.kill(after["0"], signal.SIGKILL)
        await wait_for(lambda: not psutil.pid_exists(after["0"]), what="its end")
        pod.parent.leave(signal.SIGTERM)
        assert await asyncio.wait_for(pod.run, 20) == 0


async def test_signal_reaches_all_workers_whose_ends_are_awaited(start_pod: StartPod) -> None:
    async with start_pod("slow") as pod:
        pids = await pod.wait_pids(2)
        await pod.wait_ready()
        os.kill(os.getpid(), signal.SIGTERM)
        await wait_for(lambda: not pod.parent.is_ready(), what="the drain")
        assert all(map(psutil.pid_exists, pids.values()))
        assert await pod.run == 0
        assert not any(map(psutil.pid_exists, pids.values()))


async def test_signal_at_any_point_of_the_start_ends_all(start_pod: StartPod) -> None:
    for turns in (1, 2, 4):
        async with start_pod("steady") as pod:
            for _ in range(turns):
                await asyncio.sleep(0)
            pod.parent.leave(signal.SIGTERM)
            assert await asyncio.wait_for(pod.run, 20) == 0


async def test_parent_is_not_ready_before_all_workers_and_takes_them_along_when_it_fails(
    start_pod: StartPod,
) -> None:
    async with start_pod("steady", "unready") as pod:
        # metrics are the second question to each
        pids = await pod.wait_pids(2)
        assert not pod.parent.is_ready()
        pod.run.cancel()
        await asyncio.wait([pod.run], timeout=20)
        children = [psutil.Process(pid) for pid in pids.values() if psutil.pid_exists(pid)]
        await wait_for(lambda: not any(map(is_alive, children)), what="their ends")


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended may wait for its parent to look."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def test_worker_that_cannot_use_its_settings_ends_all_with_its_status(
    start_pod: StartPod,
) -> None:
    async with start_pod("steady", "unusable") as pod:
        assert await asyncio.wait_for(pod.run, 20) == 2


async def test_worker_that_does_not_end_is_killed(start_pod: StartPod) -> None:
    async with start_pod("stubborn", "steady", leave_seconds=0.5) as pod:
        await pod.wait_pids(2)
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(pod.run, 20) == 1


async def test_hanging_worker_is_killed_and_missing_from_scrapes(
    start_pod: StartPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCRAPE_SECONDS", 0.1)
    monkeypatch.setattr(module, "READY_SECONDS", 0.1)
    async with start_pod("silent", "steady") as pod:
        await pod.wait_ready()
        workers = [child.pid for child in psutil.Process().children()]
        with monkeypatch.context() as patch:
            patch.setattr(module, "HANG_SECONDS", 0.5)
            await pod.wait_pids(1)
            await wait_for(lambda: not all(map(psutil.pid_exists, workers)), what="its end")
        await pod.wait_pids(2)
        assert list((await pod.read("gateway_unexpected_failures_total", "loop")).values()) == [1]


async def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; from gateway_apiserver.workers.parent import Parent;"
        "sys.exit(asyncio.run(Parent(sys.argv[1:], 2, 10).run()))"
    )
    command = (sys.executable, "-m", "tests.fakes.worker", str(tmp_path), "steady")
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, *command)
    family = psutil.Process(parent.pid)
    await wait_for(lambda: (tmp_path / "1").exists(), what="both workers")
    children = family.children()
    assert len(children) == 2
    parent.kill()
    await parent.wait()
    await wait_for(lambda: not any(each.is_running() for each in children), what="their ends")


def test_every_family_of_metrics_is_one_and_worker_samples_are_labelled() -> None:
    def count(value: int) -> bytes:
        registry = CollectorRegistry()
        calls = Counter("calls", "Calls.", ("surface",), registry=registry)
        calls.labels("llm").inc(value)
        return generate_latest(registry)

    text = merge_expositions(count(1), {0: count(2), 1: count(3)}).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert text.count("# TYPE calls_total counter") == 1
    assert {
        (sample.labels.get("worker"), sample.value) for sample in families["calls"].samples
    } == {
        (None, 1),
        ("0", 2),
        ("1", 3),
    }


def test_port_in_use_is_refused_to_a_second_parent_and_shared_by_workers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(OSError, match="in use"):
            reserve_port("127.0.0.1", other.getsockname()[1])
        free = other.getsockname()[1]
    (reserved,) = reserve_port("127.0.0.1", free)
    (first,), (second,) = (listen_shared("127.0.0.1", free) for _ in range(2))
    with reserved, first, second, pytest.raises(OSError, match="in use"):
        reserve_port("127.0.0.1", free)


def test_workers_listen_at_the_families_that_the_kernel_has(monkeypatch) -> None:
    def open_socket(family: int, *arguments: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *arguments)

    real = socket.socket
    for listener in (both := listen_shared("", 0)):
        listener.close()
    assert {listener.family for listener in both} == {socket.AF_INET, socket.AF_INET6}
    monkeypatch.setattr(socket, "socket", open_socket)
    (only,) = listen_shared("", 0)
    with only, pytest.raises(OSError, match="not supported"):
        listen_shared("::", 0)
    assert only.family == socket.AF_INET
