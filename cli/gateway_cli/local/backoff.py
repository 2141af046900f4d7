"""How long a process that died waits before it is started again."""

from dataclasses import dataclass

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
STEADY_SECONDS = 60.0


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
