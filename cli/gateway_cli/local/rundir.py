"""The pid files of a run, the lock that makes it the only one of its folder, and its stop.

Written by the supervisor; read by `make down` and the next `make up`.
"""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import IO

from gateway_cli.files import try_lock, write_private
from gateway_cli.local.errors import AlreadyRunningError, LocalRunError

SUPERVISOR = "supervisor"
SAME_START_SECONDS = 1.0
"""A step of the machine's clock moves the start times that psutil tells."""


class RunDirectory:
    """The folder `run`: `NAME.pid` for everybody, `processes.json` to know a pid again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None
        self._started: dict[str, tuple[int, float]] = {}

    def acquire(self) -> None:
        """Makes this process the supervisor.

        Raises:
            AlreadyRunningError: if another one is.
        """
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
        started = read_start(pid)
        if started is not None:
            self._started[name] = pid, started
            self._save()

    def remove(self, name: str) -> None:
        """Removes the pid file of a process that has ended."""
        (self.folder / f"{name}.pid").unlink(missing_ok=True)
        if self._started.pop(name, None) is not None:
            self._save()

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
        with contextlib.suppress(OSError, ValueError):
            recorded: dict[str, tuple[int, float]]
            recorded = json.loads((self.folder / "processes.json").read_text())
            for name, (pid, started) in reversed(recorded.items()):
                if name != SUPERVISOR and end_process(pid, started):
                    ended.append(name)
        for path in self.folder.glob("*.pid"):
            path.unlink()
        (self.folder / "processes.json").unlink(missing_ok=True)
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

    def _save(self) -> None:
        write_private(self.folder / "processes.json", json.dumps(self._started).encode())


def read_start(pid: int) -> float | None:
    """When the process began, in epoch seconds; None if there is none, or only its exit status.

    A pid with its start names one process: the system gives pids anew.
    """
    import psutil  # in no image, as the local run

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def end_process(pid: int, started: float, grace_seconds: float = 10.0) -> bool:
    """Ends the process if it is still the one that began then: SIGTERM, then SIGKILL.

    Returns whether there was one to end.
    """
    import psutil

    found = read_start(pid)
    if found is None or abs(found - started) > SAME_START_SECONDS:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.terminate()
        for left in psutil.wait_procs([process], timeout=grace_seconds)[1]:
            left.kill()
            left.wait()
    return True
