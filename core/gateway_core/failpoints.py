"""Named steps at which a test has the process killed, as `kill -9` would, or halted.

`GATEWAY_FAILPOINTS=after-submit:3` kills at the third time that step is reached, and
`after-submit:3:stop` halts it there until somebody sends SIGCONT. Unset, reaching one is a look
into an empty dict. Each process has names of its own, in its `failpoints`.
"""

import os
import signal
from typing import ClassVar

_ACTIONS = {"": signal.SIGKILL, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Failpoints:
    """Armed steps, and how often each may still be reached before the end."""

    names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, text: str = "") -> None:
        self._left: dict[str, int] = {}
        self._signals: dict[str, signal.Signals] = {}
        for part in filter(None, text.split(",")):
            name, count, action, *_ = [*part.split(":"), "", ""]
            if name not in self.names:
                known = ", ".join(self.names)
                raise ValueError(f"no failpoint is called {name!r}; there are {known}")
            self._left[name] = int(count or 1)
            self._signals[name] = _ACTIONS[action]

    def reach(self, name: str) -> None:
        """Passes the step `name`, or never returns, or late."""
        if name not in self._left:
            return
        self._left[name] -= 1
        if self._left[name] <= 0:
            del self._left[name]
            os.kill(os.getpid(), self._signals[name])


NO_FAILPOINTS = Failpoints()
"""For who is not to be killed."""
