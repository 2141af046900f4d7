"""Files and programs of this machine: private files, locks, child processes."""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
# loaded before any fork: a child may not take the loader's lock
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def write_private(path: Path, content: bytes) -> None:
    """Write `content` to `path` with mode 0600, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    # private from its first byte on
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(partial, path)


def try_lock(file: IO[Any]) -> bool:
    """Return whether this process now has the lock of an open file, which ends with the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def tie_to_parent() -> Callable[[], None]:
    """Return a `preexec_fn`: the kernel (Linux) kills the child when the thread that forks ends."""
    parent = os.getpid()

    def tie() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            # the parent may have died before the call
            if os.getppid() != parent:
                os._exit(1)

    return tie


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended: its exit code and what it wrote."""

    code: int | None
    output: str
    errors: str


async def run_program(
    *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Finished:
    """Run a program without input to its end; kill it and its children when cancelled."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    told = errors.decode(errors="replace").strip()
    return Finished(process.returncode, output.decode(errors="replace"), told)
