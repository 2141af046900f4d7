"""The end of a batch: its results are fixed, put into Files in the order of the input, and charged.

Once the results are fixed, everything is decided: the list of results, the Files' names, the reason
(§5.6). Every owner that continues writes the same bytes under the same keys, however often, so two
owners or a kill at any step make neither another File nor another charge.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Any

import structlog

from gateway_core.api.batch import TERMINAL_PHASES, GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import (
    BATCH_FINALIZER,
    CHARGED,
    FILE_PREFIX,
    FOLDED_LABEL,
    name_to_id,
)
from gateway_core.api.resource import Object, ObjectRef, file_key
from gateway_core.api.task import SETTLED
from gateway_core.api.times import format_label_time
from gateway_core.batches.lifecycle import Phase, record_end, record_run_end
from gateway_core.batches.lines import LONG_BYTES, Line, read_custom_id
from gateway_core.batches.results import (
    LineResult,
    RecordsDamaged,
    Unrun,
    join_results,
    merge,
    read_lines,
    render_unrun,
)
from gateway_core.billing.charges import describe_charge
from gateway_core.files.files import FileRecorder, NewFile, build_file
from gateway_core.files.quota import StorageQuota
from gateway_core.files.quota_counters import Pool
from gateway_core.kube.client import Created
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.tasks.archive import archive_task
from gateway_operator.batches.bounds import Slots
from gateway_operator.batches.store import TURN, BatchInputs, BatchStore
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.billing.reservations import Reservations
from gateway_operator.context import Context
from gateway_operator.reconciler import AT_ONCE, ON_CHANGE, Next, Superseded, after

SETTLE_PAUSE = 5.0

_log = structlog.get_logger(__name__)

MOST_BYTES = 2**40
NO_LIMIT = 2**53 - 1
"""Output Files are exempt from the size limits of Files and accounts: all results are reported."""
POOL: Pool = "files"


@dataclass(eq=False)
class Finalizing:
    """Ends batches and closes them."""

    context: Context
    store: BatchStore
    inputs: BatchInputs
    files: FileRecorder
    storage: StorageQuota
    slots: Slots
    reservations: Reservations
    aggregator: UsageAggregator

    async def fix(self, batch: GatewayBatch, run_end: str) -> None:
        """Record why the run is over, and what its Files are made of."""
        context, folder = self.context, self.store.open_results(batch)
        listed = await folder.write_list(await folder.list_keys())
        context.failpoints.reach("before-batch-run-end")
        status = record_run_end(
            batch,
            run_end,
            listed.model_dump(by_alias=True, exclude_none=True),
            output_name=self._mint_file(batch),
            error_name=self._mint_file(batch),
            now=context.now(),
        )
        await self.store.commit(batch, status)
        context.failpoints.reach("after-batch-run-end")

    async def finalize(self, batch: GatewayBatch) -> Next:
        """Make the Files and end the batch."""
        account, name = batch.spec.request.account_name, batch.metadata.name
        if not self.slots.has_room(account) and await self.store.show_wait(
            batch, Reason.WAITING_FOR_SLOT, TURN
        ):
            return AT_ONCE
        async with self.slots.take(account, name) as has_slot:
            if has_slot:
                await self._end(batch)
        return AT_ONCE

    async def abandon(self, batch: GatewayBatch) -> Next:
        """End a batch that is cancelled before any line was run: without Files, at no cost."""
        end = record_end(
            batch,
            completed=0,
            failed=0,
            sent=0,
            output_name=None,
            error_name=None,
            now=self.context.now(),
        )
        await self._commit_end(batch, end)
        return AT_ONCE

    async def close(self, batch: GatewayBatch) -> Next:
        """Aggregate the charge, settle the hold, archive, remove the results and the finalizer.

        Each part can be repeated; `work: Settled` comes last and says that all are done. A batch
        whose deletion has begun is gone before that, with its finalizer.
        """
        context, store = self.context, self.store
        # first, since the usage does not need the counters
        with self._giving_up(batch, describe_charge(batch.source)):
            await self.aggregator.aggregate(batch.source)
        context.failpoints.reach("after-batch-fold")
        overdue = context.termination.is_overdue(GatewayBatch.plural)
        if not await self.reservations.settle(batch.source) and not overdue:
            # without its finalizer it may be deleted at any time, and the hold be given back then
            return after(SETTLE_PAUSE)
        context.failpoints.reach("after-batch-settle")
        with self._giving_up(batch, "its archive and its results in the store"):
            await archive_task(context.store, batch.source)
            await store.open_results(batch).remove()
        context.failpoints.reach("after-batch-removal")
        kept = [name for name in batch.metadata.finalizers if name != BATCH_FINALIZER]
        marked = batch
        label = batch.metadata.labels.get(FOLDED_LABEL)
        if kept != batch.metadata.finalizers or label in (None, CHARGED):
            labels = {FOLDED_LABEL: format_label_time(context.now())}
            marks = {"metadata": {"finalizers": kept, "labels": labels}}
            marked = await store.amend(batch, marks)
            self.aggregator.acknowledge(marked.source)
        context.failpoints.reach("after-batch-finalizer")
        if batch.metadata.deletion_timestamp is not None:
            store.cache.drop(batch.metadata.name)
            return ON_CHANGE
        if batch.status.work != SETTLED:
            try:
                await store.commit(marked, {"work": SETTLED})
            except Superseded:
                if batch.metadata.name not in store.cache:
                    return ON_CHANGE
                raise
        return AT_ONCE

    async def give_up(self, batch: GatewayBatch) -> Next:
        """End a deleted batch without Files, charged by the lines that its status counts.

        Its bytes, or what it needs for its end, cannot be reached while its kind is terminating.
        """
        counts = batch.status.counts
        completed, failed = (counts.completed, counts.failed) if counts else (0, 0)
        _log.warning("batch ended at the removal", object=batch.metadata.name, completed=completed)
        end = record_end(
            batch,
            completed=completed,
            failed=failed,
            sent=completed + failed,
            output_name=None,
            error_name=None,
            now=self.context.now(),
        )
        await self._commit_end(batch, end)
        return AT_ONCE

    def _giving_up(self, batch: GatewayBatch, what: str) -> AbstractContextManager[None]:
        termination = self.context.termination
        return termination.giving_up(GatewayBatch.plural, batch.source, what)

    async def withdraw(self, batch: GatewayBatch) -> None:
        """Delete the Files that a failed batch has made already; its record names none."""
        status, kube = batch.status, self.context.kube
        for name in filter(None, (status.output_file_name, status.error_file_name)):
            try:
                file = await kube.get(GatewayFile.plural, name)
            except ObjectNotFound:
                continue
            if file["metadata"].get("deletionTimestamp") is None:
                await self.files.delete(file)

    async def _end(self, batch: GatewayBatch) -> None:
        status = batch.status
        if status.results is None:
            raise ValueError(f"{batch.metadata.name}: its results are not fixed")
        keys = await self.store.open_results(batch).read_list(status.results)
        segments = await self.inputs.find_segments(batch)
        unsent = Counter[str]()
        output = await self._make_file(batch, keys, segments, unsent, succeeded=True)
        errors = await self._make_file(batch, keys, segments, unsent, succeeded=False)
        self.context.failpoints.reach("before-batch-end")
        end = record_end(
            batch,
            completed=output,
            failed=errors,
            sent=output + max(0, errors - unsent["errors"]),
            output_name=status.output_file_name if output else None,
            error_name=status.error_file_name if errors else None,
            now=self.context.now(),
        )
        await self._commit_end(batch, end)

    async def _commit_end(self, batch: GatewayBatch, end: dict[str, Any]) -> None:
        await self.store.commit(batch, end)
        self.context.metrics.count_batch_end(end["phase"], self.context.age(batch))
        self.context.failpoints.reach("after-batch-end")

    async def _make_file(
        self,
        batch: GatewayBatch,
        keys: Sequence[str],
        segments: Sequence[ObjectRef],
        unsent: Counter[str],
        *,
        succeeded: bool,
    ) -> int:
        """Make one of the Files, unless it would be empty; how many lines it has.

        Failed lines that were never sent are counted in `unsent`.
        """
        status = batch.status
        name = status.output_file_name if succeeded else status.error_file_name
        account, lines = batch.spec.request.account_name, 0

        def count() -> None:
            nonlocal lines
            lines += 1

        merged = self._merge(batch, keys, segments, unsent, succeeded=succeeded)
        async with aclosing(join_results(merged, succeeded=succeeded, count=count)) as joined:
            first = await anext(joined, None)
            if first is None or name is None:
                return 0
            stored = await self.context.store.put_stream(
                file_key(account, name), _chain(first, joined), max_bytes=MOST_BYTES
            )
        self.context.failpoints.reach("after-batch-bytes")
        kind = "output" if succeeded else "error"
        # claimed before the object is made: the audit releases a claim without an object, but an
        # object without a claim would make the account's pool stale
        claim = (account, POOL, name, stored.bytes, NO_LIMIT)
        await self.storage.claim(*claim)
        new = NewFile(
            name=name,
            account=account,
            purpose="batch_output",
            filename=f"{name_to_id(batch.metadata.name)}_{kind}.jsonl",
            segments=(stored.refer(),),
            life=batch.spec.request.output_expires_after_seconds,
            key_name=batch.spec.request.key_name,
            batch_name=batch.metadata.name,
        )
        made: Created | None = None
        with self._giving_up(batch, f"the {kind} file"):
            made = await self.files.create(build_file(new, self.context.now().timestamp()))
        if made is None:
            await self.context.store.delete_many([file_key(account, name)])
            return lines
        if made.is_new:
            await self._delete_if_late(batch, made.object)
        await self.storage.confirm(*claim)
        self.context.failpoints.reach("after-batch-file")
        return lines

    async def _delete_if_late(self, batch: GatewayBatch, file: Object) -> None:
        """Delete a File that was made for a batch that has ended. Superseded then.

        Of two owners one was halted while the other ended the batch; the File was there before, and
        its client has deleted it since.
        """
        name = batch.metadata.name
        newest = await self.store.refresh(name)
        if newest is None or newest.status.phase in TERMINAL_PHASES:
            await self.files.delete(file)
            raise Superseded(f"{name}: it has ended")

    async def _merge(
        self,
        batch: GatewayBatch,
        keys: Sequence[str],
        segments: Sequence[ObjectRef],
        unsent: Counter[str],
        *,
        succeeded: bool,
    ) -> AsyncIterator[LineResult]:
        """Yield the results of all lines; unrun ones have no text where only `succeeded` count."""
        code: Unrun = (
            "batch_expired" if batch.status.run_end == Phase.EXPIRED else "batch_cancelled"
        )

        def write(line: Line) -> LineResult:
            return render_unrun(
                line.number,
                request=self.store.name_line(batch, line.number),
                custom_id=read_custom_id(line.data or b""),
                code=code,
            )

        async def render(line: Line) -> LineResult:
            if batch.status.run_end == Phase.COMPLETED:
                raise RecordsDamaged(f"the result of line {line.number} is lost")
            if succeeded:
                return LineResult(line.number, succeeded=False, text=b"")
            unsent["errors"] += 1
            if len(line.data or b"") > LONG_BYTES:
                return await asyncio.to_thread(write, line)
            return write(line)

        folder = self.store.open_results(batch)
        async with (
            aclosing(read_lines(self.context.store, segments)) as lines,
            aclosing(folder.read(keys)) as results,
            aclosing(merge(lines, results, render)) as merged,
        ):
            async for result in merged:
                yield result

    def _mint_file(self, batch: GatewayBatch) -> str:
        account = batch.spec.request.account_name
        unix_ms = int(self.context.now().timestamp() * 1000)
        return self.context.mint.mint_ordered(FILE_PREFIX, account, unix_ms)


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
