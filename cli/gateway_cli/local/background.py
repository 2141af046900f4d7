"""A local run in a thread of its own, for callers that have no event loop to give it.

Used by test fixtures: the run goes on, and restarts what dies, while the tests' own loops come
and go. The processes live as long as the thread, whatever happens to the caller.
"""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from gateway_cli.local.config import LocalConfig
from gateway_cli.local.run import LocalRun
from gateway_cli.progress import Reporter

_T = TypeVar("_T")


class BackgroundRun:
    """The methods of `LocalRun`, blocking; usable from any thread, and as a context manager."""

    def __init__(self, config: LocalConfig, reporter: Reporter | None = None) -> None:
        self.run = LocalRun(config, reporter)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="local run", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, *names: str) -> None:
        """Starts all processes, or those of `names`, and returns when all are ready."""
        self._await(self.run.start(*names))

    def kill(self, name: str, signal_number: int = signal.SIGKILL) -> None:
        """Sends a signal; after SIGKILL it returns when the process is gone."""
        self._await(self.run.kill(name, signal_number))

    def restart(self, name: str, env: Mapping[str, str] | None = None) -> None:
        """Ends a process if it runs and starts it again; `env` replaces its extra environment."""
        self._await(self.run.restart(name, env))

    def wait_ready(self, name: str) -> None:
        """Waits until a process is running and ready."""
        self._await(self.run.wait_ready(name))

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints for the run's cluster and namespace; ClusterError if it fails."""
        return self._await(self.run.cluster.run(*arguments))

    def close(self) -> None:
        """Ends all processes and the thread."""
        if self._loop.is_closed():
            return
        try:
            self._await(self.run.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
