"""Tells a process of an earlier run from a stranger that got the same pid.

Used when pid files of an earlier run are found. A pid with its start time names one process.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path


def read_identity(pid: int) -> str | None:
    """What tells the process `pid` from every other that has or had the pid; None if it is gone."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # the name, in parentheses, may hold blanks; start time is the 20th field after it
        state, *fields = stat.rpartition(")")[2].split()
        return None if state in "ZX" else f"{pid}@{fields[18]}"
    ps = shutil.which("ps")
    if ps is None:
        return None
    command = [ps, "-o", "lstart=", "-p", str(pid)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    started = result.stdout.strip()
    return f"{pid}@{started}" if started else None


def end_process(pid: int, identity: str, grace_seconds: float = 10.0) -> bool:
    """Ends the process if it is still the one of `identity`: SIGTERM, then SIGKILL.

    Returns whether there was one to end.
    """
    if read_identity(pid) != identity:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while read_identity(pid) == identity:
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.05)
    return True
