"""Runs what is left of a batch's lines, at most as fast as its provider takes them.

Everything that a run knows follows from the input and from what is in the store, so that whoever
goes on after a kill asks for no line again that stands there.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import structlog

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.errors import GatewayError
from gateway_core.api.resource import ObjectRef
from gateway_core.batches.lifecycle import (
    Phase,
    find_deadline,
    is_running,
    is_unwanted,
    record_cancelling,
    record_progress,
)
from gateway_core.batches.lines import Line
from gateway_core.batches.results import LineResult, read_lines, read_sequence
from gateway_core.kube.errors import KubernetesError
from gateway_core.providers.catalog import Model
from gateway_core.storage.objects import StoreUnavailable
from gateway_operator.batches.checkpoints import Checkpoints
from gateway_operator.batches.lines import LineCalls, Way
from gateway_operator.batches.tools import BatchTools
from gateway_operator.batches.window import Window
from gateway_operator.tasks.statuswriter import Superseded

LOOK_SECONDS = 1.0
"""From one look at what has changed around the run to the next."""
PROGRESS_SECONDS = 5.0
LONGEST_PROGRESS = 30.0
"""Between two writes of the counts; of a long run they come less often."""
GRACE_SECONDS = 540.0
"""How long calls under way may take to end once no more are begun (§5.5: ten minutes)."""
STORE_PAUSE = 2.0
HANDOVER_SECONDS = 12.0
"""The same where this process is to end."""

_log = structlog.get_logger(__name__)


class Run:
    """One run of a batch in this process; `find_model` raises GatewayError where it is gone."""

    def __init__(
        self,
        tools: BatchTools,
        batch: GatewayBatch,
        segments: Sequence[ObjectRef],
        find_model: Callable[[], Model],
    ) -> None:
        self._tools = tools
        self._batch = batch
        self._find_model = find_model
        self._segments = segments
        self._name = batch.metadata.name
        self._folder = tools.open_results(batch)
        self._share = tools.budget.open(batch.spec.request.account_name)
        self._checkpoints = Checkpoints(self._folder, self._share, tools.base.failpoints)
        self._window = Window(self._share)
        self._done: set[int] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._room = asyncio.Event()
        self._way: Way | None = None
        self._trouble: tuple[Reason, str] | None = None
        self._trouble_at = float("-inf")
        self._failure: BaseException | None = None
        self._end: str | None = None
        self._makes_way = False
        self._told: tuple[object, ...] = ()
        self._wake = asyncio.Event()

    @property
    def checkpoint_age(self) -> float:
        """Seconds since the oldest result that is not in the store yet."""
        return self._checkpoints.age

    def stop(self) -> None:
        """Has the run begin no more lines, and end once those under way have: another goes on."""
        self._makes_way = False
        self._finish("")

    def look(self) -> None:
        """The batch's object has changed."""
        self._wake.set()

    async def run(self) -> str | None:
        """Why no more lines are to be run, a value of `runEnd`; None where another is to go on.

        Raises what the ports raise.
        """
        await self._load()
        await self._look()
        tasks = [asyncio.create_task(part()) for part in (self._checkpoints.run, self._watch)]
        for part in tasks:
            part.add_done_callback(self._note_death)
        pump = asyncio.create_task(self._pump())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((pump, stopping), return_when=asyncio.FIRST_COMPLETED)
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
            return Phase.COMPLETED if self._end is None else self._end or None
        finally:
            left: list[asyncio.Task[Any]] = [*tasks, pump, stopping, *self._calls]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._share.close()

    async def _load(self) -> None:
        """Takes in which lines have ended. What the store raises, RecordsDamaged."""
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
        """Begins the lines, one after the other, as far as there is room."""
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
                way = await self._wait_for_way()
                await way.lane.enter(account, self._name)
                self._window.begin(place, len(line.data or b""))
                call = asyncio.create_task(self._run_line(line, place, way))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
        while self._calls and self._failure is None:
            await asyncio.wait(list(self._calls), return_when=asyncio.FIRST_COMPLETED)

    def _read_lines(self) -> AsyncGenerator[Line, None]:
        """The lines; while the store is away it is asked again and again."""

        async def wait(error: StoreUnavailable) -> None:
            _log.warning("the input of a batch cannot be read", object=self._name, error=str(error))
            await asyncio.sleep(STORE_PAUSE)

        return read_lines(self._tools.base.store, self._segments, wait)

    async def _wait_for_way(self) -> Way:
        while self._way is None:
            self._room.clear()
            await self._room.wait()
        return self._way

    async def _run_line(self, line: Line, place: int, way: Way) -> None:
        calls = LineCalls(
            self._tools, self._batch, lambda: self._way or way, self._note_trouble, self._stop
        )
        result: LineResult | None = None
        try:
            result = await calls.run(line, way)
        except Exception as error:  # the boundary: an odd line ends the run, which begins anew
            self._failure = self._failure or error
            self._finish("")
        self._window.end(place, len(result.text) if result else 0)
        if result is not None:
            self._checkpoints.add(result)
            outcome = "completed" if result.succeeded else "failed"
            self._tools.base.metrics.batch_lines.labels(outcome).inc()
        self._room.set()

    async def _end_calls(self) -> None:
        """Waits for the calls under way, as long as may be."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while self._calls:
            # looked at anew: this process may be told to end meanwhile
            seconds = GRACE_SECONDS if self._end or self._makes_way else HANDOVER_SECONDS
            left = begun + seconds - loop.time()
            if left <= 0:
                return
            await asyncio.wait(list(self._calls), timeout=min(left, LOOK_SECONDS))

    async def _flush(self, writer: asyncio.Task[None]) -> None:
        """Has all results written; where another goes on, only as long as a moment."""
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
        """A part that should have gone on has ended: so does the run, which begins anew."""
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
        """Looks at what is around the run, and tells how far it has come, until cancelled."""
        loop = asyncio.get_running_loop()
        begun = written = loop.time()
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self._look()
            self._room.set()
            pause = min(LONGEST_PROGRESS, max(PROGRESS_SECONDS, (loop.time() - begun) / 20))
            if loop.time() - written >= pause and await self._tell():
                written = loop.time()

    async def _look(self) -> None:
        """Takes in whether the batch is to end, and where its calls go now."""
        obj = self._tools.register.get(self._name)
        if obj is None:
            self._finish("")
            return
        batch = GatewayBatch.model_validate(obj)
        if not is_running(batch):
            # another owner has brought the run to its end
            self._finish("")
            return
        if is_unwanted(batch):
            self._finish(Phase.CANCELLED)
            if batch.status.cancelling_time is None:
                await self._write(record_cancelling(batch, self._tools.now()))
        elif self._tools.now() >= find_deadline(batch):
            self._finish(Phase.EXPIRED)
        if not self._tools.base.shards.owns(batch.metadata.labels):
            self._finish("")
        if self._end is not None:
            self._tools.runs.note_leaving(self._name)
        elif self._tools.runs.is_due(self._name):
            self._makes_way = True
            self._finish("")
        try:
            moderator = await self._tools.moderators.find(self._find_model())
        except GatewayError as error:
            self._way = None
            self._note_trouble(Reason.PROVIDER_UNAVAILABLE, error.message)
        else:
            provider = moderator.route.provider_name
            lane = self._tools.lanes.open(provider, self._tools.allow(provider))
            self._way = Way(moderator, lane)

    async def _tell(self) -> bool:
        """Writes how far the run has come, if that is news; whether it was written."""
        obj = self._tools.register.get(self._name)
        loop = asyncio.get_running_loop()
        waits = self._trouble
        if waits is not None and loop.time() - self._trouble_at > LONGEST_PROGRESS:
            waits = self._trouble = None
        told = (self._checkpoints.completed, self._checkpoints.failed, waits)
        if obj is None or told == self._told:
            return False
        batch = GatewayBatch.model_validate(obj)
        if not is_running(batch):
            return False
        progress = record_progress(batch, *told, self._tools.now())
        if not await self._write(progress):
            return False
        self._told = told
        return True

    async def _write(self, status: dict[str, object]) -> bool:
        obj = self._tools.register.get(self._name)
        if obj is None:
            return False
        try:
            await self._tools.register.commit(obj, status)
        except Superseded:
            self._wake.set()
            return False
        except KubernetesError as error:
            _log.info("progress not recorded", object=self._name, error=str(error))
            return False
        return True
