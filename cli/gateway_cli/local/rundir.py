"""The pid files of a run, the lock that makes it the only one of its folder, and its stop.

Used by the supervisor (writes), `make down` and the next `make up` (read).
"""

import contextlib
import fcntl
import json
import os
import signal
import time
from pathlib import Path
from typing import IO

from gateway_cli.local.errors import AlreadyRunningError, LocalRunError
from gateway_cli.local.identity import end_process, read_identity

SUPERVISOR = "supervisor"


class RunDirectory:
    """The folder `run`: `NAME.pid` for everybody, `processes.json` to know a pid again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None
        self._identities: dict[str, str] = {}

    def acquire(self) -> None:
        """Makes this process the supervisor.

        Raises:
            AlreadyRunningError: if another one is.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = (self.folder / "supervisor.lock").open("w")
        if not _try_lock(lock):
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
            return not _try_lock(probe)

    def record(self, name: str, pid: int) -> None:
        """Writes the pid file of a process that was just started."""
        _write(self.folder / f"{name}.pid", f"{pid}\n")
        identity = read_identity(pid)
        if identity is not None:
            self._identities[name] = identity
            self._save()

    def remove(self, name: str) -> None:
        """Removes the pid file of a process that has ended."""
        (self.folder / f"{name}.pid").unlink(missing_ok=True)
        if self._identities.pop(name, None) is not None:
            self._save()

    def read_pid(self, name: str) -> int | None:
        """The pid in `NAME.pid`, whether or not there is such a process."""
        try:
            return int((self.folder / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return None

    def clear_stale(self) -> list[str]:
        """Removes what a run left that did not end in order; ends what still lives of it.

        Returns the names of processes that were ended. Only for the supervisor, or when none is.
        """
        ended = []
        with contextlib.suppress(OSError, ValueError):
            recorded: dict[str, str] = json.loads((self.folder / "processes.json").read_text())
            for name, identity in reversed(recorded.items()):
                pid = int(identity.partition("@")[0])
                if name != SUPERVISOR and end_process(pid, identity):
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
        _write(self.folder / "processes.json", json.dumps(self._identities))


def _try_lock(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(path: Path, text: str) -> None:
    # a reader never sees half of it
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)
