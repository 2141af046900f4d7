"""The pid files of a run, the lock that makes it the only one of its folder, and its stop.

Written by the supervisor; read by `make down` and the next `make up`. The system gives pids anew: a
process that began after its pid file was written is another one.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import IO

from gateway_cli.local.errors import AlreadyRunningError, LocalRunError
from gateway_cli.machine import try_lock, write_private

SUPERVISOR = "supervisor"
CLOCK_STEP_SECONDS = 1.0
"""Tolerance for steps of the machine's clock, from which psutil derives the start."""


class RunDirectory:
    """The folder `run`, with a file `NAME.pid` for each process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None

    def acquire(self) -> None:
        """Makes this process the supervisor. AlreadyRunningError if another one is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = (self.folder / "supervisor.lock").open("w")
        if not try_lock(lock):
            lock.close()
            raise AlreadyRunningError(
                f"a local run is already up in {self.folder.parent} "
                f"(supervisor pid {self.read_pid(SUPERVISOR)}); `make down` ends it"
            )
        self._lock = lock

    def release(self) -> None:
        """Ends being the supervisor."""
        if self._lock is not None:
            self.remove(SUPERVISOR)
            self._lock.close()
            self._lock = None

    def is_running(self) -> bool:
        """Whether some process is the supervisor of this folder now."""
        path = self.folder / "supervisor.lock"
        if self._lock is not None:
            return True
        if not path.exists():
            return False
        with path.open("r+") as probe:
            return not try_lock(probe)

    def record(self, name: str, pid: int) -> None:
        """Writes the pid file of a process that was just started."""
        write_private(self.folder / f"{name}.pid", f"{pid}\n".encode())

    def remove(self, name: str) -> None:
        """Removes the pid file of a process that has ended."""
        (self.folder / f"{name}.pid").unlink(missing_ok=True)

    def read_pid(self, name: str) -> int | None:
        """The pid in `NAME.pid`, whether or not there is such a process."""
        try:
            return int((self.folder / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return None

    def clear_stale(self) -> list[str]:
        """Removes what a run left that did not end in order; ends the processes that it left.

        Returns the names of processes that were ended. Only for the supervisor, or when none is.
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
        """Asks the supervisor to stop and waits until it has; False if there is none.

        Raises:
            LocalRunError: if it cannot be told to stop, or does not in time.
        """
        if not self.is_running():
            return False
        pid = self.read_pid(SUPERVISOR)
        if pid is None:
            raise LocalRunError(f"a run is up in {self.folder.parent}, but has no pid file")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_seconds
        while self.is_running():
            if time.monotonic() > deadline:
                raise LocalRunError(f"the supervisor (pid {pid}) did not stop in time")
            time.sleep(0.05)
        return True


def end_process(pid: int, recorded: float, grace_seconds: float = 10.0) -> bool:
    """Ends the process whose pid was recorded then, in epoch seconds: SIGTERM, then SIGKILL.

    Returns whether there was one to end.
    """
    import psutil  # in no image, as the local run

    try:
        process = psutil.Process(pid)
        if process.create_time() > recorded + CLOCK_STEP_SECONDS:
            return False
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.terminate()
        for left in psutil.wait_procs([process], timeout=grace_seconds)[1]:
            left.kill()
            left.wait()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return True
