"""Runs the remaining lines of a batch, at most as fast as its provider takes them.

All that a run knows follows from the input and from the results in the store, so that a process
that continues after a kill repeats no line whose result is there.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.errors import GatewayError
from gateway_core.api.resource import ObjectRef
from gateway_core.batches import lifecycle
from gateway_core.batches.lines import Line
from gateway_core.batches.results import LineResult, read_lines, read_sequence
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.kube.errors import KubernetesError
from gateway_core.providers.catalog import Model
from gateway_core.providers.moderators import Moderators
from gateway_core.storage.objects import StoreUnavailable
from gateway_operator.batches.bounds import MOST_BYTES, Share, Slots, Window
from gateway_operator.batches.checkpoints import Checkpoints
from gateway_operator.batches.limiter import ProviderLimiters
from gateway_operator.batches.lines import Destination, LineCalls
from gateway_operator.batches.store import BatchStore
from gateway_operator.context import Context
from gateway_operator.outages import PATIENCE_SECONDS, STORE
from gateway_operator.reconciler import Superseded
from gateway_operator.tasks.calls import ProviderCalls

LOOK_SECONDS = 1.0
"""Between two checks of the batch, the provider and the shards."""
PROGRESS_SECONDS = 5.0
LONGEST_PROGRESS = 30.0
"""Between two writes of the counts; less often in a long run."""
GRACE_SECONDS = 540.0
"""How long calls in flight may take to end once no more are begun (§5.5: ten minutes)."""
STORE_PAUSE = 2.0
HANDOVER_SECONDS = 12.0
"""The same where this process is to end."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Runner:
    """The collaborators that all runs of a process share."""

    context: Context
    store: BatchStore
    slots: Slots
    limiters: ProviderLimiters
    moderators: Moderators
    calls: ProviderCalls
    budget: FairSemaphore = field(default_factory=lambda: FairSemaphore(MOST_BYTES))


class Run:
    """One run of a batch in this process. `find_model` raises GatewayError where it is gone."""

    def __init__(
        self,
        runner: Runner,
        batch: GatewayBatch,
        segments: Sequence[ObjectRef],
        find_model: Callable[[], Model],
    ) -> None:
        self._runner = runner
        self._context = runner.context
        self._store = runner.store
        self._batch = batch
        self._find_model = find_model
        self._segments = segments
        self._name = batch.metadata.name
        self._folder = runner.store.open_results(batch)
        self._share = Share(runner.budget, batch.spec.request.account_name)
        self._checkpoints = Checkpoints(self._folder, self._share, runner.context.failpoints)
        self._window = Window(self._share)
        self._done: set[int] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._room = asyncio.Event()
        self._destination: Destination | None = None
        self._trouble: tuple[Reason, str] | None = None
        self._trouble_at = float("-inf")
        self._failure: BaseException | None = None
        self._end: str | None = None
        self._makes_way = False
        self._reported: tuple[object, ...] = ()
        self._wake = asyncio.Event()
        self._line_calls = LineCalls(
            runner.context,
            runner.store,
            runner.calls,
            batch,
            lambda: self._destination,
            self._note_trouble,
            self._stop,
        )

    @property
    def checkpoint_age(self) -> float:
        """Seconds since the oldest result that is not in the store yet."""
        return self._checkpoints.age

    def stop(self) -> None:
        """Begin no more lines, and end once those in flight have: another process continues."""
        self._makes_way = False
        self._finish("")

    def look(self) -> None:
        """Check the batch now, since its object has changed."""
        self._wake.set()

    async def run(self) -> str | None:
        """Run the lines; the reason of the end (`runEnd`), or None where another run continues."""
        await self._load()
        await self._check()
        tasks = [asyncio.create_task(part()) for part in (self._checkpoints.run, self._watch)]
        for part in tasks:
            part.add_done_callback(self._note_death)
        pump = asyncio.create_task(self._pump())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((pump, stopping), return_when=asyncio.FIRST_COMPLETED)
            # its calls are tasks of their own, and are completed below
            if not pump.done():
                pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            if not pump.cancelled() and pump.exception() is not None:
                self._failure = self._failure or pump.exception()
                self._finish("")
            await self._end_calls()
            await self._flush(tasks[0])
            if self._failure is not None:
                raise self._failure
            return lifecycle.Phase.COMPLETED if self._end is None else self._end or None
        finally:
            left: list[asyncio.Task[Any]] = [*tasks, pump, stopping, *self._calls]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._share.close()

    async def _load(self) -> None:
        """Read which lines have ended. RecordsDamaged, and what the store raises."""
        keys = await self._folder.list_keys()
        completed = 0
        async with aclosing(self._folder.read(keys)) as results:
            async for result in results:
                if result.number not in self._done:
                    self._done.add(result.number)
                    completed += result.succeeded
        sequence = max(map(read_sequence, keys), default=0)
        self._checkpoints.resume(sequence, completed, len(self._done) - completed)

    async def _pump(self) -> None:
        """Begin the lines in order, as far as there is room."""
        if self._stop.is_set():
            return
        account, place = self._batch.spec.request.account_name, 0
        async with aclosing(self._read_lines()) as lines:
            async for line in lines:
                place += 1
                if line.number in self._done:
                    continue
                while not (self._window.has_room() and self._checkpoints.has_room):
                    self._room.clear()
                    await self._room.wait()
                to = await self._wait_for_destination()
                # the slot is taken here, not by the call: lines must begin in order, or a line that
                # waits would hold up the window of those after it
                await to.limiter.enter(account, self._name)
                self._window.begin(place, len(line.data or b""))
                call = asyncio.create_task(self._run_line(line, place, to))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
        while self._calls and self._failure is None:
            await asyncio.wait(list(self._calls), return_when=asyncio.FIRST_COMPLETED)

    def _read_lines(self) -> AsyncGenerator[Line, None]:
        """Return the lines; reads are repeated while the store is away."""

        async def wait(error: StoreUnavailable) -> None:
            _log.warning("the input of a batch cannot be read", object=self._name, error=str(error))
            self._note_trouble(Reason.WAITING_FOR_STORE, STORE)
            await asyncio.sleep(STORE_PAUSE)

        return read_lines(self._context.store, self._segments, wait)

    async def _wait_for_destination(self) -> Destination:
        while self._destination is None:
            self._room.clear()
            await self._room.wait()
        return self._destination

    async def _run_line(self, line: Line, place: int, to: Destination) -> None:
        result: LineResult | None = None
        try:
            result = await self._line_calls.run(line, to)
        except Exception as error:  # the boundary: an odd line ends the run, which starts anew
            self._failure = self._failure or error
            self._finish("")
        self._window.end(place, len(result.text) if result else 0)
        if result is not None:
            self._checkpoints.add(result)
            outcome = "completed" if result.succeeded else "failed"
            self._context.metrics.batch_lines.labels(outcome).inc()
        self._room.set()

    async def _end_calls(self) -> None:
        """Wait for the calls in flight, within the grace time."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while self._calls:
            # evaluated anew: the process may begin to shut down meanwhile
            seconds = GRACE_SECONDS if self._end or self._makes_way else HANDOVER_SECONDS
            left = begun + seconds - loop.time()
            if left <= 0:
                return
            await asyncio.wait(list(self._calls), timeout=min(left, LOOK_SECONDS))

    async def _flush(self, writer: asyncio.Task[None]) -> None:
        """Write all results; for a moment only, where another process continues."""
        flushing = asyncio.create_task(self._checkpoints.flush())
        seconds = HANDOVER_SECONDS if self._end == "" and not self._makes_way else None
        try:
            await asyncio.wait(
                (flushing, writer), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not flushing.done():
                _log.warning("results were not stored; their requests are run again")
        finally:
            flushing.cancel()

    def _note_death(self, part: asyncio.Task[None]) -> None:
        """End the run, which starts anew, since one of its loops has failed."""
        error = None if part.cancelled() else part.exception()
        if error is not None:
            self._failure = self._failure or error
            self._finish("")

    def _finish(self, end: str) -> None:
        if self._end is None or (self._end and not end):
            self._end = end
        self._stop.set()

    def _note_trouble(self, reason: Reason, message: str) -> None:
        self._trouble, self._trouble_at = (reason, message), asyncio.get_running_loop().time()

    async def _watch(self) -> None:
        """Check the batch and report progress, until cancelled."""
        loop = asyncio.get_running_loop()
        begun = written = loop.time()
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self._check()
            self._room.set()
            pause = min(LONGEST_PROGRESS, max(PROGRESS_SECONDS, (loop.time() - begun) / 20))
            if loop.time() - written >= pause and await self._report():
                written = loop.time()

    async def _check(self) -> None:
        """Check whether the run has to end, and where its calls go now."""
        runner, batch = self._runner, self._store.cache.get(self._name)
        if batch is None or not lifecycle.is_running(batch):
            # it is gone, or another owner has ended its run
            self._finish("")
            return
        if lifecycle.is_unwanted(batch):
            self._finish(lifecycle.Phase.CANCELLED)
            if batch.status.cancelling_time is None:
                await self._write(lifecycle.record_cancelling(batch, self._context.now()))
        elif self._context.now() >= lifecycle.find_deadline(batch):
            self._finish(lifecycle.Phase.EXPIRED)
        if not self._context.shards.owns(batch.metadata.labels):
            self._finish("")
        if self._end is not None:
            runner.slots.note_leaving(self._name)
        elif runner.slots.is_due(self._name):
            self._makes_way = True
            self._finish("")
        try:
            model = self._find_model()
        except GatewayError as error:
            self._destination = None
            self._note_trouble(Reason.WAITING_FOR_MODEL, error.message)
            return
        try:
            moderator = await runner.moderators.find(model)
        except GatewayError:
            self._destination = None
            problems = await runner.moderators.find_problems(model)
            self._note_trouble(Reason.WAITING_FOR_PROVIDER, problems)
        else:
            limiter = runner.limiters.open(moderator.route.provider_name)
            self._destination = Destination(moderator, limiter)

    async def _report(self) -> bool:
        """Write the progress, if it has changed; whether it was written."""
        batch, loop = self._store.cache.get(self._name), asyncio.get_running_loop()
        if self._checkpoints.age >= PATIENCE_SECONDS:
            self._note_trouble(Reason.WAITING_FOR_STORE, STORE)
        waits = self._trouble
        if waits is not None and loop.time() - self._trouble_at > LONGEST_PROGRESS:
            waits = self._trouble = None
        report = (self._checkpoints.completed, self._checkpoints.failed, waits)
        if batch is None or report == self._reported or not lifecycle.is_running(batch):
            return False
        if not await self._write(lifecycle.record_progress(batch, *report, self._context.now())):
            return False
        self._reported = report
        if waits is not None:
            text = lifecycle.describe_wait(batch, waits[1])
            self._context.events.warn(batch.source, reason=waits[0], message=text)
        return True

    async def _write(self, status: dict[str, object]) -> bool:
        batch = self._store.cache.get(self._name)
        if batch is None:
            return False
        try:
            await self._store.commit(batch, status)
        except Superseded:
            self._wake.set()
            return False
        except KubernetesError as error:
            _log.info("progress not recorded", object=self._name, error=str(error))
            return False
        return True
