"""Limits of waits in tests, of which a machine that stalls uses up little."""

import time

MAX_STEP_SECONDS = 0.5


class Deadline:
    """A limit in seconds for a condition that is looked at again and again.

    The time from one look to the next counts for at most `step` seconds: where the machine stood
    still between two looks, the condition had no time to come true either.
    """

    def __init__(self, seconds: float, *, step: float = MAX_STEP_SECONDS) -> None:
        self._left = seconds
        self._step = step
        self._last = time.monotonic()

    def is_over(self) -> bool:
        """Count the time since the last look, and return True when none is left."""
        now = time.monotonic()
        self._left -= min(now - self._last, self._step)
        self._last = now
        return self._left < 0
