"""Checkpoints of a run: results are written to the store in groups, never one object a line.

A line counts as ended once its result is in the store. While the store is away results wait in
memory, and the run begins no more lines than their bound allows. What was not written is lost with
the process, and those lines run again.
"""

import asyncio
import time

import structlog

from gateway_core.batches.results import LineResult, ResultsFolder
from gateway_core.storage.objects import StoreUnavailable
from gateway_operator.batches.bounds import Share
from gateway_operator.context import Failpoints

PAUSE_SECONDS = 1.5
"""From a result to the write that contains it: together less than two seconds."""
FULL_BYTES = 8 * 1024 * 1024
MOST_WAITING_LINES = 4000
RETRY_SECONDS = 2.0

_log = structlog.get_logger(__name__)


class Checkpoints:
    """The writer of one run; waiting results count in the run's `share` of bytes."""

    def __init__(self, folder: ResultsFolder, share: Share, failpoints: Failpoints) -> None:
        self._folder = folder
        self._share = share
        self._failpoints = failpoints
        self._sequence = 0
        self._waiting: list[LineResult] = []
        self._bytes = 0
        self._since: float | None = None
        self._news = asyncio.Event()
        self._hurry = asyncio.Event()
        self._written = asyncio.Event()
        self.completed = 0
        self.failed = 0
        """Lines in the store, with an answer of 2xx and otherwise."""

    @property
    def has_room(self) -> bool:
        """True if waiting results leave room for more lines."""
        return not self._waiting or (self._share.has_room and not self._is_full)

    @property
    def _is_full(self) -> bool:
        return self._bytes >= FULL_BYTES or len(self._waiting) >= MOST_WAITING_LINES

    @property
    def age(self) -> float:
        """Seconds that the oldest waiting result has waited; 0 where none waits."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def resume(self, sequence: int, completed: int, failed: int) -> None:
        """Continue after what was found in the store."""
        self._sequence, self.completed, self.failed = sequence, completed, failed

    def add(self, result: LineResult) -> None:
        """Add the result of a line."""
        self._waiting.append(result)
        self._bytes += len(result.text)
        self._share.take(len(result.text))
        if self._since is None:
            self._since = time.monotonic()
        self._news.set()
        if self._is_full:
            self._hurry.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._news.wait()
            try:
                async with asyncio.timeout(max(0.0, PAUSE_SECONDS - self.age)):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            if not await self._write():
                await asyncio.sleep(RETRY_SECONDS)

    async def flush(self) -> None:
        """Return once all results are in the store, however long that takes."""
        while self._waiting:
            self._hurry.set()
            self._written.clear()
            await self._written.wait()

    async def _write(self) -> bool:
        """Write all waiting results; whether that succeeded."""
        self._news.clear()
        self._hurry.clear()
        chosen, begun = list(self._waiting), time.monotonic()
        self._failpoints.reach("before-batch-checkpoint")
        # each number is used once: a write that was given up may still arrive, after a later one
        self._sequence += 1
        try:
            await self._folder.write(self._sequence, chosen)
        except StoreUnavailable as error:
            _log.warning("results of a batch wait for the store", error=str(error))
            self._news.set()
            return False
        self._failpoints.reach("after-batch-checkpoint")
        del self._waiting[: len(chosen)]
        size = sum(len(result.text) for result in chosen)
        self._bytes -= size
        self._share.give(size)
        self._since = begun if self._waiting else None
        succeeded = sum(result.succeeded for result in chosen)
        self.completed += succeeded
        self.failed += len(chosen) - succeeded
        self._written.set()
        return True
