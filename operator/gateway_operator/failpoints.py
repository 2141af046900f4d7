"""Named steps at which a test has the process killed, as `kill -9` would.

`GATEWAY_FAILPOINTS=after-submit:3` kills at the third time that step is reached. Unset, reaching
one is a look into an empty dict.
"""

import os
import signal

NAMES = (
    "before-intent",
    "after-intent",
    "after-submit",
    "after-running",
    "before-outputs",
    "after-outputs",
    "after-terminal",
    "before-callback",
    "after-callback",
    "after-callback-record",
    "after-archive",
    "after-settle",
    "after-finalizer",
)


class Failpoints:
    """Armed steps, and how often each may still be reached before the end."""

    def __init__(self, text: str = "") -> None:
        self._left: dict[str, int] = {}
        for part in filter(None, text.split(",")):
            name, _, count = part.partition(":")
            if name not in NAMES:
                raise ValueError(f"no failpoint is called {name!r}; there are {', '.join(NAMES)}")
            self._left[name] = int(count or 1)

    def reach(self, name: str) -> None:
        """Passes the step `name`, or never returns."""
        if name not in self._left:
            return
        self._left[name] -= 1
        if self._left[name] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
