"""The end of a run: its results are fixed, put in the order of the input and made Files (§5.6).

From the write that fixes them on all is decided: the list of results, the Files' names, the reason.
Whoever does what is left writes the same bytes under the same keys, however often, so two owners or
a kill at any step make neither another File nor another charge.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from gateway_core.api.batch import TERMINAL_PHASES, GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import FILE_PREFIX
from gateway_core.api.resource import Object, ObjectRef, file_key
from gateway_core.batches.lifecycle import Phase, record_end, record_run_end
from gateway_core.batches.lines import LONG_BYTES, Line, read_custom_id
from gateway_core.batches.results import (
    LineResult,
    RecordsDamaged,
    Unrun,
    join_results,
    merge,
    read_lines,
    tell_unrun,
)
from gateway_core.files.files import NewFile, build_file
from gateway_core.files.quota_counters import Pool
from gateway_core.kube.errors import ObjectNotFound
from gateway_operator.batches.intake import Intake
from gateway_operator.batches.tools import BatchTools, name_file
from gateway_operator.tasks.statuswriter import Superseded

MOST_BYTES = 2**40
NO_LIMIT = 2**53 - 1
"""No cap of a single File holds for these, nor that of the account: what has been run is told."""
POOL: Pool = "files"


class Finalizing:
    """Ends runs."""

    def __init__(self, tools: BatchTools, intake: Intake) -> None:
        self._tools = tools
        self._intake = intake

    async def fix(self, obj: Object, batch: GatewayBatch, run_end: str) -> None:
        """Records why the run is over, and what its Files are made of. What the ports raise."""
        tools, folder = self._tools, self._tools.open_results(batch)
        listed = await folder.write_list(await folder.list_keys())
        tools.base.failpoints.reach("before-batch-run-end")
        status = record_run_end(
            batch,
            run_end,
            listed.model_dump(by_alias=True, exclude_none=True),
            output_name=self._mint_file(batch),
            error_name=self._mint_file(batch),
            now=tools.now(),
        )
        await tools.register.commit(obj, status)
        tools.base.failpoints.reach("after-batch-run-end")

    async def finalize(self, obj: Object, batch: GatewayBatch) -> bool:
        """Makes the Files and ends the batch."""
        account, name = batch.spec.request.account_name, batch.metadata.name
        async with self._tools.endings.take(account, name) as has_place:
            if has_place:
                await self._end(obj, batch)
        return True

    async def _end(self, obj: Object, batch: GatewayBatch) -> None:
        tools, status = self._tools, batch.status
        if status.results is None:
            raise ValueError(f"{batch.metadata.name}: its results are not fixed")
        keys = await tools.open_results(batch).read_list(status.results)
        segments = await self._intake.find_segments(batch)
        unsent = Counter[str]()
        output = await self._make_file(batch, keys, segments, unsent, succeeded=True)
        errors = await self._make_file(batch, keys, segments, unsent, succeeded=False)
        tools.base.failpoints.reach("before-batch-end")
        end = record_end(
            batch,
            completed=output,
            failed=errors,
            sent=output + max(0, errors - unsent["errors"]),
            output_name=status.output_file_name if output else None,
            error_name=status.error_file_name if errors else None,
            now=tools.now(),
        )
        await tools.register.commit(obj, end)
        tools.base.metrics.count_batch_end(end["phase"], tools.age(batch))
        tools.base.failpoints.reach("after-batch-end")

    async def abandon(self, obj: Object, batch: GatewayBatch) -> bool:
        """Ends a batch that is cancelled before any line was run: without Files, at no cost."""
        end = record_end(
            batch,
            completed=0,
            failed=0,
            sent=0,
            output_name=None,
            error_name=None,
            now=self._tools.now(),
        )
        await self._tools.register.commit(obj, end)
        self._tools.base.metrics.count_batch_end(end["phase"], self._tools.age(batch))
        self._tools.base.failpoints.reach("after-batch-end")
        return True

    async def _make_file(
        self,
        batch: GatewayBatch,
        keys: Sequence[str],
        segments: Sequence[ObjectRef],
        unsent: Counter[str],
        *,
        succeeded: bool,
    ) -> int:
        """One of the Files, unless it would be empty; how many lines it has.

        Lines of the errors that were never sent are counted in `unsent`.
        """
        tools, status = self._tools, batch.status
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
            stored = await tools.base.store.put_stream(
                file_key(account, name), _chain(first, joined), max_bytes=MOST_BYTES
            )
        tools.base.failpoints.reach("after-batch-bytes")
        claim = (account, POOL, name, stored.bytes, NO_LIMIT)
        await tools.storage.claim(*claim)
        new = NewFile(
            name=name,
            account=account,
            purpose="batch_output",
            filename=name_file(batch, "output" if succeeded else "error"),
            segments=(stored.refer(),),
            life=batch.spec.request.output_expires_after_seconds,
            key_name=batch.spec.request.key_name,
            batch_name=batch.metadata.name,
        )
        made = await tools.files.create(build_file(new, tools.now().timestamp()))
        if made.is_new:
            await self._look_whether_late(batch, made.object)
        await tools.storage.confirm(*claim)
        tools.base.failpoints.reach("after-batch-file")
        return lines

    async def withdraw(self, batch: GatewayBatch) -> None:
        """Deletes the Files that a failed batch has made already; its record names none."""
        status, kube = batch.status, self._tools.base.kube
        for name in filter(None, (status.output_file_name, status.error_file_name)):
            try:
                file = await kube.get(GatewayFile.plural, name)
            except ObjectNotFound:
                continue
            if file["metadata"].get("deletionTimestamp") is None:
                await self._tools.files.delete(file)

    async def _look_whether_late(self, batch: GatewayBatch, file: Object) -> None:
        """A File made for a batch that has ended was there before, and deleted: it goes again.

        Superseded then; of two owners one was halted while the other ended the batch.
        """
        name = batch.metadata.name
        newest = await self._tools.register.refresh(name)
        phase = (newest or {}).get("status", {}).get("phase")
        if newest is None or phase in TERMINAL_PHASES:
            await self._tools.files.delete(file)
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
        """What came of each line; of those never run no text where only `succeeded` ones count."""
        tools, store = self._tools, self._tools.base.store
        code: Unrun = (
            "batch_expired" if batch.status.run_end == Phase.EXPIRED else "batch_cancelled"
        )

        def write(line: Line) -> LineResult:
            return tell_unrun(
                line.number,
                request=tools.name_line(batch, line.number),
                custom_id=read_custom_id(line.data or b""),
                code=code,
            )

        async def tell(line: Line) -> LineResult:
            if batch.status.run_end == Phase.COMPLETED:
                raise RecordsDamaged(f"the result of line {line.number} is lost")
            if succeeded:
                return LineResult(line.number, succeeded=False, text=b"")
            unsent["errors"] += 1
            if len(line.data or b"") > LONG_BYTES:
                return await asyncio.to_thread(write, line)
            return write(line)

        folder = tools.open_results(batch)
        async with (
            aclosing(read_lines(store, segments)) as lines,
            aclosing(folder.read(keys)) as results,
            aclosing(merge(lines, results, tell)) as merged,
        ):
            async for result in merged:
                yield result

    def _mint_file(self, batch: GatewayBatch) -> str:
        account = batch.spec.request.account_name
        unix_ms = int(self._tools.now().timestamp() * 1000)
        return self._tools.base.mint.mint_ordered(FILE_PREFIX, account, unix_ms)


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
