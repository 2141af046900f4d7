"""Server processes that are forked from a parent which has imported them.

The parent is the fork server of `multiprocessing`, one for each test process: a process of the
gateway starts in a tenth of a second instead of two. It is a real process with a pid and a log of
its own, which signals reach, and which ends with the tests as any other does.
"""

import asyncio
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from gateway_cli.local.processes import ProcessSpec
from gateway_cli.local.supervisor import Supervisor
from tests.servers.server import execute

ROOT = Path(__file__).resolve().parents[2]

PRELOADED = (
    "gateway_apiserver.media_process",
    "gateway_apiserver.processes",
    "gateway_mcpserver.app",
    "gateway_mcpserver.compose",
    "gateway_operator.handlers",
    "gateway_simulator.app",
    "kubernetes.config",
    "tests.servers.forking",
)
READ_AT_START = ("PYTHON", "LD_", "MALLOC_")
"""Beginnings of the names of variables that an interpreter reads once, at its start."""
HARMLESS = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
"""Those of them that make no difference here: a forked process writes its log through."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(PRELOADED))
_executing = threading.Event()


class ForkedServer:
    """One forked process, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self.sentinel = process.sentinel
        self._process = process
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process runs."""
        # the status can be read once, and several threads ask
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit status. TimeoutExpired after `timeout` seconds."""
        wait([self.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkedChild:
    """One forked process as a supervisor sees it, with the methods of an asyncio process."""

    def __init__(self, server: ForkedServer) -> None:
        self.pid = server.pid
        self.returncode: int | None = None
        self._server = server
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(server.sentinel, self._note_end)

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._server.sentinel)
        self.returncode = self._server.poll()
        self._ended.set()

    async def wait(self) -> int:
        """Wait for the end, and return the exit status."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._server.send_signal(signal.SIGTERM)


class ForkingSupervisor(Supervisor):
    """Forks the processes of the gateway; other programs are executed."""

    async def spawn(self, spec: ProcessSpec) -> Process | ForkedChild:
        """Start a process with its output appended to its log."""
        log = self.log_of(spec.name)
        # the first one waits for the parent's imports
        server = await asyncio.to_thread(fork_server, spec.command, spec.env, log)
        return await super().spawn(spec) if server is None else ForkedChild(server)


def start_server(
    command: Sequence[str], env: Mapping[str, str], log: Path
) -> ForkedServer | subprocess.Popen[bytes]:
    """Start a process in the checkout's folder, its output appended to `log`."""
    forked = fork_server(command, env, log)
    if forked is not None:
        return forked
    with log.open("ab") as output:
        return execute(command, env=env, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


def fork_server(command: Sequence[str], env: Mapping[str, str], log: Path) -> ForkedServer | None:
    """Fork `python -m MODULE …`, its output appended to `log`.

    None for a program of another kind, and for an environment that changes the interpreter.
    """
    if not may_fork(command, env):
        return None
    module, *arguments = command[2:]
    process = _context.Process(
        target=_serve, name=module, args=(module, arguments, dict(env), str(log)), daemon=True
    )
    process.start()
    return ForkedServer(process)


def execute_servers() -> None:
    """Execute each server from now on, with the memory and the start that it has in production."""
    _executing.set()


def may_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether a process of this command and environment can come from the fork server."""
    if _executing.is_set() or tuple(command[:2]) != (sys.executable, "-m"):
        return False
    names = {name for name in (*env, *os.environ) if name.startswith(READ_AT_START)}
    return all(env.get(n) == os.environ.get(n) for n in names - HARMLESS)


def _serve(module: str, arguments: list[str], env: dict[str, str], log: str) -> None:
    """Become the process: run `module` as `python -m` does."""
    os.setsid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with open(os.devnull, "rb") as nothing, open(log, "ab") as output:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    # the fork server, and with it this process, lives while a process holds the pipe to it
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = os.fdopen(0, closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # a log must show what a process wrote before it was killed
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
