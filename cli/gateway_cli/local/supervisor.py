"""Starts processes, watches them, restarts those that die, and ends them in reverse order.

`run` knows what the processes are. A run's supervisor is used from one event loop.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from gateway_cli.local.errors import LocalRunError, ProcessFailedError
from gateway_cli.local.processes import ProcessSpec
from gateway_cli.local.rundir import RunDirectory
from gateway_cli.progress import Reporter, format_seconds

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
STEADY_SECONDS = 60.0
_POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
# loaded before any fork: a child may not take the loader's lock
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(slots=True)
class Backoff:
    """Delays that double with every quick death and begin anew after a steady life."""

    failures: int = 0

    def next_delay(self, alive_seconds: float) -> float:
        """Seconds to wait, for a process that lived `alive_seconds`: 0.5, 1, 2 … 30."""
        if alive_seconds >= STEADY_SECONDS:
            self.failures = 0
        delay = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return delay


@dataclass(slots=True)
class _Child:
    spec: ProcessSpec
    process: asyncio.subprocess.Process
    started: float
    watcher: asyncio.Task[None] | None = None
    stopping: bool = False
    backoff: Backoff = field(default_factory=Backoff)


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
        """The log of the process `name`."""
        return self._log_directory / f"{name}.log"

    def pid_of(self, name: str) -> int:
        """The pid the process has now. LocalRunError if it is not running."""
        if not self.is_alive(name):
            raise LocalRunError(f"{name} is not running")
        return self._children[name].process.pid

    def is_alive(self, name: str) -> bool:
        """Whether the process is running now."""
        child = self._children.get(name)
        return child is not None and child.process.returncode is None

    async def start(self, spec: ProcessSpec) -> None:
        """Starts a process and waits until it is ready; from then on it is watched.

        Raises:
            ProcessFailedError: if it ends before, or is not ready in time (then it is ended).
        """
        if self.is_alive(spec.name):
            raise LocalRunError(f"{spec.name} is already running")
        self._log_directory.mkdir(parents=True, exist_ok=True)
        process = await self._spawn(spec)
        child = self._children[spec.name] = _Child(spec, process, time.monotonic())
        try:
            await self._await_ready(child)
        except BaseException:
            await self._end(child)
            raise
        child.watcher = asyncio.create_task(self._watch(child), name=f"watch {spec.name}")

    async def wait_ready(self, name: str) -> None:
        """Waits until the process is running and ready, also over a restart.

        Raises:
            ProcessFailedError: if it is not ready in the time of its spec.
        """
        child = self._child(name)
        deadline = time.monotonic() + child.spec.ready_timeout_seconds
        while not (self.is_alive(name) and await child.spec.is_ready()):
            if time.monotonic() > deadline:
                raise ProcessFailedError(name, "is not ready in time", self.log_of(name))
            await asyncio.sleep(_POLL_SECONDS)

    async def kill(self, name: str, signal_number: int = signal.SIGKILL) -> None:
        """Sends a signal to the process and, for SIGKILL, waits until it is gone.

        The restart policy decides whether it comes back.
        """
        process = self._child(name).process
        os.kill(self.pid_of(name), signal_number)
        if signal_number == signal.SIGKILL:
            await process.wait()

    async def stop(self, name: str) -> None:
        """Ends one process for good: SIGTERM, then SIGKILL after its grace time."""
        child = self._children.get(name)
        if child is not None:
            await self._end(child)

    async def stop_all(self) -> None:
        """Ends all processes, the last started first; returns when all are gone."""
        for child in reversed(list(self._children.values())):
            await self._end(child)
        self._children.clear()

    def _child(self, name: str) -> _Child:
        child = self._children.get(name)
        if child is None:
            raise LocalRunError(f"{name} is not part of this run")
        return child

    async def _spawn(self, spec: ProcessSpec) -> asyncio.subprocess.Process:
        """Starts a process with its output appended to its log.

        It gets a session of its own, so that Ctrl-C reaches the supervisor alone, which ends the
        processes in order. On Linux the kernel kills it when the thread that started it ends.
        """
        parent = os.getpid()

        def die_with_parent() -> None:
            if _LIBC is not None:
                _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                # the parent may have died before the call
                if os.getppid() != parent:
                    os._exit(1)

        with self.log_of(spec.name).open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(spec.env),
                cwd=self._cwd,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._run_directory.record(spec.name, process.pid)
        return process

    async def _await_ready(self, child: _Child) -> None:
        name = child.spec.name
        deadline = child.started + child.spec.ready_timeout_seconds
        while True:
            if child.process.returncode is not None:
                how = _describe_exit(child.process.returncode)
                raise ProcessFailedError(name, f"ended while starting: {how}", self.log_of(name))
            if await child.spec.is_ready():
                return
            if time.monotonic() > deadline:
                limit = format_seconds(child.spec.ready_timeout_seconds)
                raise ProcessFailedError(name, f"is not ready after {limit}", self.log_of(name))
            await asyncio.sleep(_POLL_SECONDS)

    async def _watch(self, child: _Child) -> None:
        """Reports the end of a process, and starts it again by the policy."""
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
            delay = child.backoff.next_delay(time.monotonic() - child.started)
            self._reporter.line(
                f"! {ended}; again in {format_seconds(delay)} (log: {self.log_of(name)})",
                style="yellow",
            )
            await asyncio.sleep(delay)
            child.started = time.monotonic()
            try:
                child.process = await self._spawn(child.spec)
            except OSError as error:
                self._reporter.line(f"! {name} cannot be started: {error}", style="yellow")
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
    """An exit code in words: `exit code 3`, `killed by SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
