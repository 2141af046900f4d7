"""Progress of what takes more than a moment, on a terminal and in a log alike."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape

PLAIN_FIRST_SECONDS = 3.0
PLAIN_INTERVAL_SECONDS = 20.0
"""Interval of the lines about a stage that is still at work, without a terminal."""


def format_seconds(seconds: float) -> str:
    """Return a duration for people: `0.4 s`, `12 s`, `3 min 05 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def plain_options() -> dict[str, Any]:
    """Return options of a console for NO_COLOR, under which the library still writes bold text."""
    return {"color_system": None} if os.environ.get("NO_COLOR") else {}


class Reporter:
    """Writes progress to one console; `Reporter.quiet()` writes nothing (tests).

    Stages may run side by side: a terminal shows all that are under way in one line.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, **plain_options())
        self._stages: dict[str, float] = {}
        self._notes: dict[str, str] = {}
        self._ticker: asyncio.Task[None] | None = None

    @classmethod
    def quiet(cls) -> "Reporter":
        """Return a reporter that says nothing."""
        return cls(Console(quiet=True))

    @classmethod
    def on_stderr(cls) -> "Reporter":
        """Return a reporter beside a result on standard output."""
        return cls(Console(stderr=True, highlight=False, **plain_options()))

    def line(self, text: str, style: str = "") -> None:
        """Print `text` as it is: no markup is read, nothing is wrapped."""
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    @contextlib.asynccontextmanager
    async def stage(self, text: str) -> AsyncIterator[Callable[[str], None]]:
        """Show `text` with the time it takes while the body runs, and its total at the end.

        The body gets a function that sets a note, which is shown beside the time.
        """
        begin = self._stages[text] = time.monotonic()
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())
        mark = "✗"
        try:
            yield partial(self._notes.__setitem__, text)
            mark = "✓"
        finally:
            self._stages.pop(text, None)
            self._notes.pop(text, None)
            if not self._stages:
                await self._end_ticker()
            self.line(f"{mark} {text} ({format_seconds(time.monotonic() - begin)})")

    async def _tick(self) -> None:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            with self.console.status("") as status:
                while True:
                    status.update(escape("; ".join(self._describe_stages())))
                    await asyncio.sleep(0.2)
        # a stage that ends soon needs no line to say that it has begun
        await asyncio.sleep(PLAIN_FIRST_SECONDS)
        while True:
            for text in self._describe_stages():
                self.line(f"… {text} so far")
            await asyncio.sleep(PLAIN_INTERVAL_SECONDS)

    def _describe_stages(self) -> list[str]:
        now = time.monotonic()
        return [
            ", ".join(
                filter(None, (f"{text}: {format_seconds(now - begin)}", self._notes.get(text)))
            )
            for text, begin in self._stages.items()
        ]

    async def _end_ticker(self) -> None:
        ticker, self._ticker = self._ticker, None
        if ticker is not None:
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
