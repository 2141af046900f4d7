"""The supervisor with small real processes: ready checks, restarts, order and end."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from gateway_cli.local.config import LocalRunError
from gateway_cli.local.processes import ProcessSpec
from gateway_cli.local.supervisor import (
    ProcessFailedError,
    RunDirectory,
    Supervisor,
    end_process,
)
from gateway_cli.progress import Reporter

SLEEP = ("sleep", "600")


class Bench:
    """A supervisor with what a test needs to look at it."""

    def __init__(self, folder: Path, restart: bool = True) -> None:
        self.run_directory = RunDirectory(folder / "run")
        self.run_directory.acquire()
        self.folder = folder
        reporter = Reporter.quiet()
        self.lines: list[str] = []
        reporter.line = lambda text, style="": self.lines.append(text)  # type: ignore[method-assign]
        self.supervisor = Supervisor(
            self.run_directory, folder / "log", folder, reporter, restart=restart
        )

    def spec(self, name: str, command: tuple[str, ...] = SLEEP, **options: object) -> ProcessSpec:
        async def is_ready() -> bool:
            return True

        return ProcessSpec(name, command, dict(os.environ), is_ready, **options)  # type: ignore[arg-type]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.supervisor.stop_all()
    bench.run_directory.release()


async def _until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.02)


def _is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_process_has_a_pid_file_while_it_lives(bench: Bench) -> None:
    await bench.supervisor.start(bench.spec("one"))
    file = bench.folder / "run" / "one.pid"
    pid = int(file.read_text())
    assert bench.supervisor.pid_of("one") == pid
    await bench.supervisor.stop("one")
    assert not file.exists()
    assert not _is_running(pid)


async def test_dead_process_is_restarted_and_reported(bench: Bench) -> None:
    await bench.supervisor.start(bench.spec("one"))
    before = bench.supervisor.pid_of("one")
    await bench.supervisor.kill("one")
    await _until(lambda: bench.supervisor.is_alive("one"))
    assert bench.supervisor.pid_of("one") != before
    assert bench.run_directory.read_pid("one") == bench.supervisor.pid_of("one")
    assert bench.run_directory.read_restarts("one") == 1
    assert any("one ended: killed by SIGKILL; again in 0." in line for line in bench.lines)
    await _until(lambda: any("one is up again" in line for line in bench.lines))


async def test_dead_process_stays_dead_without_restart_policy(tmp_path: Path) -> None:
    bench = Bench(tmp_path, restart=False)
    await bench.supervisor.start(bench.spec("one"))
    await bench.supervisor.kill("one")
    await _until(lambda: bool(bench.lines))
    assert not bench.supervisor.is_alive("one")
    with pytest.raises(LocalRunError, match="not running"):
        bench.supervisor.pid_of("one")
    await bench.supervisor.start(bench.spec("one"))
    assert bench.supervisor.is_alive("one")
    await bench.supervisor.stop_all()


async def test_process_that_ends_while_starting_raises_with_its_log(bench: Bench) -> None:
    async def never() -> bool:
        return False

    command = ("sh", "-c", "echo last words; exit 3")
    spec = ProcessSpec("one", command, dict(os.environ), never)
    with pytest.raises(ProcessFailedError, match="exit code 3") as caught:
        await bench.supervisor.start(spec)
    assert caught.value.process == "one"
    assert caught.value.log_tail == ["last words"]


async def test_process_that_never_becomes_ready_is_ended(bench: Bench) -> None:
    async def never() -> bool:
        return False

    spec = ProcessSpec("one", SLEEP, dict(os.environ), never, ready_timeout_seconds=0.2)
    with pytest.raises(ProcessFailedError, match="not ready after"):
        await bench.supervisor.start(spec)
    assert not bench.supervisor.is_alive("one")


async def test_processes_stop_in_reverse_order(bench: Bench) -> None:
    note = bench.folder / "note"
    for name in ("first", "second", "third"):
        script = (
            f"trap 'echo {name} >> {note}; exit 0' TERM; touch {name}; while :; do sleep 0.02; done"
        )
        await bench.supervisor.start(bench.spec(name, ("sh", "-c", script)))
        await _until((bench.folder / name).exists)
    await bench.supervisor.stop_all()
    assert note.read_text().split() == ["third", "second", "first"]


async def test_process_that_ignores_sigterm_is_killed(bench: Bench) -> None:
    script = "trap '' TERM; touch ready; while :; do sleep 0.02; done"
    await bench.supervisor.start(bench.spec("one", ("sh", "-c", script), grace_seconds=0.2))
    await _until((bench.folder / "ready").exists)
    pid = bench.supervisor.pid_of("one")
    await bench.supervisor.stop_all()
    assert not _is_running(pid)


def test_two_supervisors_of_one_folder_are_refused(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path)
    first.acquire()
    assert RunDirectory(tmp_path).is_running()
    with pytest.raises(LocalRunError, match="already up"):
        RunDirectory(tmp_path).acquire()
    first.release()
    assert not RunDirectory(tmp_path).is_running()


def test_stale_processes_are_ended_but_not_later_ones_with_their_pid(tmp_path: Path) -> None:
    earlier = RunDirectory(tmp_path)
    earlier.acquire()
    left = subprocess.Popen(SLEEP)
    stranger = subprocess.Popen(SLEEP)
    try:
        earlier.record("left", left.pid)
        earlier.record("stranger", stranger.pid)
        # as if the pid had been given to another process since
        earlier = time.time() - 60
        os.utime(tmp_path / "stranger.pid", (earlier, earlier))
        assert RunDirectory(tmp_path).clear_stale() == ["left"]
        assert not _is_running(left.pid)
        assert stranger.poll() is None
        assert list(tmp_path.glob("*.pid")) == []
    finally:
        for process in (left, stranger):
            process.kill()
            process.wait()


def test_process_that_began_after_its_record_is_not_ended() -> None:
    with subprocess.Popen(SLEEP) as process:
        assert not end_process(process.pid, time.time() - 60)
        assert process.poll() is None
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal of Linux")
async def test_children_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    program = """
import asyncio, os, sys
from pathlib import Path
from gateway_cli.local.processes import ProcessSpec
from gateway_cli.local.supervisor import RunDirectory, Supervisor
from gateway_cli.progress import Reporter

async def main():
    async def is_ready(): return True
    run_directory = RunDirectory(Path("run"))
    run_directory.acquire()
    supervisor = Supervisor(run_directory, Path("log"), Path("."), Reporter.quiet())
    await supervisor.start(ProcessSpec("one", ("sleep", "600"), dict(os.environ), is_ready))
    print(supervisor.pid_of("one"), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    supervisor = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert supervisor.stdout is not None
    child = int(await supervisor.stdout.readline())
    assert _is_running(child)
    supervisor.kill()
    await supervisor.wait()
    await _until(lambda: not _is_running(child))
