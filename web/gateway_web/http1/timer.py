"""The time that a client may take for its next step."""

import asyncio
from collections.abc import Callable, Mapping

from gateway_web.http1.states import State


class StateTimer:
    """Calls `expire` when the connection has been in a state for longer than its `seconds`.

    In states that `seconds` lacks the client has no step to take.
    """

    def __init__(
        self,
        seconds: Mapping[State, float],
        loop: asyncio.AbstractEventLoop,
        expire: Callable[[], None],
    ) -> None:
        self._seconds = seconds
        self._loop = loop
        self._expire: Callable[[], None] | None = expire
        self._state: State | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, state: State) -> None:
        """Begin the time of the state, unless it is the present one; nothing puts it off later."""
        if state is self._state:
            return
        self._state = state
        seconds = self._seconds.get(state)
        if seconds is None:
            # the timer stays, as most requests end before it
            return
        self._deadline = self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._deadline:
            self._cancel()
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._check)

    def close(self) -> None:
        """End the timer for good, and drop its reference to the connection."""
        self._cancel()
        self._expire = None

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._state not in self._seconds or self._expire is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._check)
        else:
            self._expire()
