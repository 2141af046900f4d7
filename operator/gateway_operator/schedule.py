"""Periodic sweeps: each in a loop of its own, so that a long one delays no other."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway_core.concurrency import Supervisor
from gateway_core.kube.errors import KubernetesError
from gateway_core.redis.link import CountersUnavailable
from gateway_core.storage.objects import StoreUnavailable

FIRST_SECONDS = 5.0
"""Before the first run: a process that starts has more urgent work."""

_AWAY = (KubernetesError, StoreUnavailable, CountersUnavailable)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A function to call periodically; it returns how much it did.

    After a failure it is called again after `retry_seconds`, by default as after a success.
    """

    name: str
    run: Callable[[], Awaitable[int]]
    pause_seconds: float
    first_seconds: float = FIRST_SECONDS
    retry_seconds: float | None = None


class Schedule:
    """Runs sweeps until cancelled, also after failures.

    `note` is called with the name of each sweep at the start and after each success, so that alerts
    on the age of the last success measure from there.
    """

    def __init__(
        self, note: Callable[[str], None], *sweeps: Sweep, supervisor: Supervisor | None = None
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._note = note
        self._sweeps = sweeps
        for sweep in sweeps:
            note(sweep.name)

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as group:
            for sweep in self._sweeps:
                group.create_task(self._repeat(sweep), name=f"sweep {sweep.name}")

    async def _repeat(self, sweep: Sweep) -> None:
        await asyncio.sleep(min(sweep.first_seconds, sweep.pause_seconds))
        while True:
            with self._supervisor.guard(sweep.name, *_AWAY) as attempt:
                await sweep.run()
                self._note(sweep.name)
            pause = sweep.pause_seconds
            if attempt.failed and sweep.retry_seconds is not None:
                pause = sweep.retry_seconds
            spread = random.uniform(0.9, 1.1)  # noqa: S311 - spreads replicas, hides nothing
            await asyncio.sleep(pause * spread)
