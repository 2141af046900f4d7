"""Days of UTC, and the wall clock of a real process."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path


def find_pause(now: datetime, seconds: float) -> float:
    """How long a test that takes so many seconds waits, so that it begins and ends on one day."""
    tomorrow = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    left = (tomorrow + timedelta(days=1) - now).total_seconds()
    return left if left < seconds else 0.0


LIBRARY = "vendor/libfaketime/src/libfaketime.so.1"


class SkewedClock:
    """How far a process's wall clock is from the machine's: kept in a file that it reads.

    The process is started with `env`; `shift` also moves the clock of one that runs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shift(3600)
        told = subprocess.check_output(
            [sys.executable, "-c", "import time; print(time.time())"], env=self.env
        )
        assert float(told) > time.time() + 3000, "libfaketime has no effect on this machine"
        self.shift(0)

    def shift(self, seconds: int) -> None:
        """Sets the clock so many seconds ahead, or behind."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}s\n")
        fresh.replace(self._path)

    @property
    def env(self) -> dict[str, str]:
        spec = find_spec("libfaketime")
        assert spec is not None
        assert spec.origin is not None
        return {
            "LD_PRELOAD": str(Path(spec.origin).parent / LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # files are dated by the kernel
            "NO_FAKE_STAT": "1",
        }
