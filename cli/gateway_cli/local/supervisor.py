"""The processes of a run: started, watched, restarted when they die, ended in reverse order.

Their pid files, and the lock that makes a supervisor the only one of its folder, are written by the
supervisor and read by `make down` and the next `make up`. `run` knows what the processes are.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gateway_cli.local.config import LocalRunError
from gateway_cli.local.processes import ProcessSpec
from gateway_cli.machine import tie_to_parent, try_lock, write_private
from gateway_cli.progress import Reporter, format_seconds
from gateway_core.concurrency import STEADY_SECONDS, back_off
from gateway_core.failures import describe_failure

SUPERVISOR = "supervisor"
RUN_FILE = "run.json"
"""The processes of the run and its ports, for those who look at it from outside."""
CLOCK_STEP_SECONDS = 1.0
"""Tolerance for steps of the machine's clock, from which psutil derives the start."""

TAIL_LINES = 20
_POLL_SECONDS = 0.05


class ProcessFailedError(LocalRunError):
    """A process of the run ended or never became ready; the text has the end of its log."""

    def __init__(self, process: str, text: str, log: Path) -> None:
        self.process = process
        self.log_tail = list[str]()
        with contextlib.suppress(OSError), log.open(errors="replace") as file:
            self.log_tail = [line.rstrip("\n") for line in deque(file, TAIL_LINES)]
        quoted = "".join(f"\n  {process} | {line}" for line in self.log_tail)
        super().__init__(f"{process} {text} (log: {log}){quoted}")


class RunDirectory:
    """The folder `run`, with a file `NAME.pid` for each process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None

    def acquire(self) -> None:
        """Make this process the supervisor. LocalRunError if another one is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = (self.folder / "supervisor.lock").open("w")
        if not try_lock(lock):
            lock.close()
            raise LocalRunError(
                f"a local run is already up in {self.folder.parent} "
                f"(supervisor pid {self.read_pid(SUPERVISOR)}); `make down` ends it"
            )
        self._lock = lock

    def release(self) -> None:
        """End being the supervisor."""
        if self._lock is not None:
            self.remove(SUPERVISOR)
            self._lock.close()
            self._lock = None

    def is_running(self) -> bool:
        """Return whether some process is the supervisor of this folder now."""
        path = self.folder / "supervisor.lock"
        if self._lock is not None:
            return True
        if not path.exists():
            return False
        with path.open("r+") as probe:
            return not try_lock(probe)

    def describe(self, processes: Sequence[str], ports: Mapping[str, int]) -> None:
        """Write which processes the run has, and all ports by the names of `Ports`."""
        text = json.dumps({"processes": list(processes), "ports": dict(ports)})
        write_private(self.folder / RUN_FILE, text.encode())

    def record(self, name: str, pid: int) -> None:
        """Write the pid file of a process that was just started."""
        write_private(self.folder / f"{name}.pid", f"{pid}\n".encode())

    def remove(self, name: str) -> None:
        """Remove the pid file of a process that has ended."""
        (self.folder / f"{name}.pid").unlink(missing_ok=True)

    def record_restarts(self, name: str, number: int) -> None:
        """Write how often the process was started again since the run began."""
        write_private(self.folder / f"{name}.restarts", f"{number}\n".encode())

    def read_restarts(self, name: str) -> int:
        """Return how often the process was started again since the run began."""
        return self._read_number(f"{name}.restarts") or 0

    def read_pid(self, name: str) -> int | None:
        """Return the pid in `NAME.pid`, whether or not there is such a process."""
        return self._read_number(f"{name}.pid")

    def _read_number(self, file: str) -> int | None:
        try:
            return int((self.folder / file).read_text())
        except (OSError, ValueError):
            return None

    def clear_stale(self) -> list[str]:
        """End the processes that a killed run left, and remove its files.

        Return the names of processes that were ended. Only for the supervisor, or when none is.
        """
        ended = []
        files = sorted(self.folder.glob("*.pid"), key=lambda path: path.stat().st_mtime)
        for path in reversed(files):
            pid = self.read_pid(path.stem)
            if path.stem != SUPERVISOR and pid and end_process(pid, path.stat().st_mtime):
                ended.append(path.stem)
            path.unlink()
        return ended

    def stop_supervisor(self, timeout_seconds: float = 60.0) -> bool:
        """Ask the supervisor to stop and wait until it has; return False if there is none.

        Raises:
            LocalRunError: if it cannot be told to stop, or does not in time.
        """
        import psutil  # in no image, as the local run

        if not self.is_running():
            return False
        pid = self.read_pid(SUPERVISOR)
        if pid is None:
            raise LocalRunError(f"a run is up in {self.folder.parent}, but has no pid file")
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.terminate()
            if psutil.wait_procs([process], timeout_seconds)[1]:
                raise LocalRunError(f"the supervisor (pid {pid}) did not stop in time")
        return True


def end_process(pid: int, recorded: float, grace_seconds: float = 10.0) -> bool:
    """End the process whose pid was recorded then, in epoch seconds: SIGTERM, then SIGKILL.

    Returns whether there was one to end.
    """
    import psutil  # in no image, as the local run

    try:
        process = psutil.Process(pid)
        is_later = process.create_time() > recorded + CLOCK_STEP_SECONDS
        if is_later or process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.terminate()
        for left in psutil.wait_procs([process], timeout=grace_seconds)[1]:
            left.kill()
            left.wait()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return True


@dataclass(slots=True)
class _Child:
    spec: ProcessSpec
    process: Process
    started: float
    watcher: asyncio.Task[None] | None = None
    stopping: bool = False
    failures: int = 0
    restarts: int = 0


class Supervisor:
    """The processes of one run, by name, in the order of their first start."""

    def __init__(
        self,
        run_directory: RunDirectory,
        log_directory: Path,
        cwd: Path,
        reporter: Reporter,
        restart: bool = True,
    ) -> None:
        self._run_directory = run_directory
        self._log_directory = log_directory
        self._cwd = cwd
        self._reporter = reporter
        self._restart = restart
        self._children: dict[str, _Child] = {}

    @property
    def names(self) -> list[str]:
        """The processes that were started and not stopped for all, in that order."""
        return list(self._children)

    def log_of(self, name: str) -> Path:
        """Return the log of the process `name`."""
        return self._log_directory / f"{name}.log"

    def pid_of(self, name: str) -> int:
        """Return the pid that the process has now. LocalRunError if it is not running."""
        if not self.is_alive(name):
            raise LocalRunError(f"{name} is not running")
        return self._children[name].process.pid

    def is_alive(self, name: str) -> bool:
        """Return whether the process is running now."""
        child = self._children.get(name)
        return child is not None and child.process.returncode is None

    async def start(self, spec: ProcessSpec) -> None:
        """Start a process and wait until it is ready; from then on it is watched.

        Raises:
            ProcessFailedError: if it ends before, or is not ready in time (then it is ended).
        """
        if self.is_alive(spec.name):
            raise LocalRunError(f"{spec.name} is already running")
        self._log_directory.mkdir(parents=True, exist_ok=True)
        self._run_directory.record_restarts(spec.name, 0)
        child = _Child(spec, await self._spawn(spec), time.monotonic())
        self._children[spec.name] = child
        try:
            await self._await_ready(child)
        except BaseException:
            await self._end(child)
            raise
        child.watcher = asyncio.create_task(self._watch(child), name=f"watch {spec.name}")

    async def kill(self, name: str, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to the process and, for SIGKILL, wait until it is gone.

        The restart policy decides whether it comes back.
        """
        os.kill(self.pid_of(name), signal_number)
        if signal_number == signal.SIGKILL:
            await self._children[name].process.wait()

    async def stop(self, name: str) -> None:
        """End one process for good: SIGTERM, then SIGKILL after its grace time."""
        child = self._children.get(name)
        if child is not None:
            await self._end(child)

    async def stop_all(self) -> None:
        """End all processes, the last started first; return when all are gone."""
        for child in reversed(list(self._children.values())):
            await self._end(child)
        self._children.clear()

    async def spawn(self, spec: ProcessSpec) -> Process:
        """Start a process with its output appended to its log.

        It gets a session of its own, so that Ctrl-C reaches the supervisor alone, which ends the
        processes in order. On Linux the kernel kills it when the thread that started it ends.
        """
        with self.log_of(spec.name).open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(spec.env),
                cwd=self._cwd,
                start_new_session=True,
                preexec_fn=tie_to_parent(),
            )

    async def _spawn(self, spec: ProcessSpec) -> Process:
        process = await self.spawn(spec)
        self._run_directory.record(spec.name, process.pid)
        return process

    async def _await_ready(self, child: _Child) -> None:
        """Wait until the process is ready. ProcessFailedError if it ends or takes too long."""
        name, limit = child.spec.name, child.spec.ready_timeout_seconds
        while True:
            # first: another process may answer at its port
            if (code := child.process.returncode) is not None:
                text = f"ended while starting: {_describe_exit(code)}"
                raise ProcessFailedError(name, text, self.log_of(name))
            if await child.spec.is_ready():
                return
            if time.monotonic() > child.started + limit:
                text = f"is not ready after {format_seconds(limit)}"
                raise ProcessFailedError(name, text, self.log_of(name))
            await asyncio.sleep(_POLL_SECONDS)

    async def _watch(self, child: _Child) -> None:
        """Report the end of a process, and start it again by the policy."""
        name = child.spec.name
        while True:
            code = await child.process.wait()
            self._run_directory.remove(name)
            if child.stopping:
                return
            ended = f"{name} ended: {_describe_exit(code)}"
            if not self._restart:
                self._reporter.line(f"! {ended} (log: {self.log_of(name)})", style="yellow")
                return
            steady = time.monotonic() - child.started >= STEADY_SECONDS
            child.failures = 1 if steady else child.failures + 1
            delay = back_off(child.failures)
            self._reporter.line(
                f"! {ended}; again in {format_seconds(delay)} (log: {self.log_of(name)})",
                style="yellow",
            )
            await asyncio.sleep(delay)
            child.started = time.monotonic()
            try:
                child.process = await self._spawn(child.spec)
                child.restarts += 1
                self._run_directory.record_restarts(name, child.restarts)
            except OSError as error:
                self._reporter.line(
                    f"! {name} cannot be started: {describe_failure(error)}", style="yellow"
                )
                continue
            with contextlib.suppress(ProcessFailedError):
                await self._await_ready(child)
                self._reporter.line(f"✓ {name} is up again (pid {child.process.pid})")

    async def _end(self, child: _Child) -> None:
        child.stopping = True
        if child.watcher is not None:
            child.watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await child.watcher
        process = child.process
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), child.spec.grace_seconds)
            except TimeoutError:
                self._reporter.line(f"! {child.spec.name} does not end; killing it", style="yellow")
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        self._run_directory.remove(child.spec.name)


def _describe_exit(code: int) -> str:
    """Return an exit code in words: `exit code 3`, `killed by SIGKILL`."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
