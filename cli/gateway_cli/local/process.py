"""One process of the run: what it is started with, and its start.

Used by the supervisor. A child never outlives its supervisor where the kernel can see to it.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ReadyCheck = Callable[[], Awaitable[bool]]

_PR_SET_PDEATHSIG = 1
# loaded before any fork: a child may not take the loader's lock
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How a process is run and when it counts as ready.

    Attributes:
        name: names its log and pid file.
        command: program and arguments.
        env: its whole environment.
        is_ready: asks once; must not raise and must not take longer than about a second.
        ready_timeout_seconds: how long it may take to become ready.
        grace_seconds: how long it has after SIGTERM before SIGKILL.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    is_ready: ReadyCheck
    ready_timeout_seconds: float = 60.0
    grace_seconds: float = 10.0


async def spawn(spec: ProcessSpec, log: Path, cwd: Path) -> asyncio.subprocess.Process:
    """Starts the process with its output appended to `log`.

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

    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(spec.env),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def describe_exit(code: int | None) -> str:
    """An exit code in words: `exit code 3`, `killed by SIGKILL`."""
    if code is not None and code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"
