"""A server on an event loop in a thread of its own, so that blocking tests can use it too.

The base of `Balancer`, `Proxy` and `OperationsProvider`.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")

CALL_SECONDS = 10


class ThreadServer(ABC):
    """Usable from any thread, as a context manager. Subclasses open and close what they serve."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.close())
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @abstractmethod
    async def open(self) -> None:
        """Begins to serve."""

    @abstractmethod
    async def close(self) -> None:
        """Serves no more; what is under way is cancelled after it."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Has the server's loop do something, and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)


async def _cancel_others() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
