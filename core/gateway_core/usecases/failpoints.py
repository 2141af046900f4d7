"""Named steps at which a test has the process killed, as `kill -9` would.

`GATEWAY_FAILPOINTS=after-submit:3` kills at the third time that step is reached. Unset, reaching
one is a look into an empty dict. Each process has names of its own, in its `failpoints`.
"""

import os
import signal
from typing import ClassVar


class Failpoints:
    """Armed steps, and how often each may still be reached before the end."""

    names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, text: str = "") -> None:
        self._left: dict[str, int] = {}
        for part in filter(None, text.split(",")):
            name, _, count = part.partition(":")
            if name not in self.names:
                known = ", ".join(self.names)
                raise ValueError(f"no failpoint is called {name!r}; there are {known}")
            self._left[name] = int(count or 1)

    def reach(self, name: str) -> None:
        """Passes the step `name`, or never returns."""
        if name not in self._left:
            return
        self._left[name] -= 1
        if self._left[name] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
