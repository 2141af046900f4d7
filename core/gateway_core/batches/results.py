"""Results of a Batch's lines: stored while it runs, merged in the input's order at its end."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from gateway_core.api.resource import ObjectRef, batch_folder
from gateway_core.batches.lines import Line, LineSplitter
from gateway_core.storage.content import Check, ContentDamaged
from gateway_core.storage.objects import ObjectStore, StoreUnavailable

OUTPUT = b"o"
ERROR = b"e"
Unrun = Literal["batch_expired", "batch_cancelled"]
_MESSAGES: Mapping[Unrun, str] = {
    "batch_expired": "The completion window ended before this request ran.",
    "batch_cancelled": "The batch was cancelled before this request ran.",
}


class RecordsDamaged(Exception):
    """Stored results of a batch cannot be read."""


@dataclass(frozen=True, slots=True)
class LineResult:
    """Result of one input line. `text` is its line of the output file, without LF."""

    number: int
    succeeded: bool
    text: bytes

    def encode(self) -> bytes:
        """Return the record, with LF."""
        kind = OUTPUT if self.succeeded else ERROR
        return b"%d\t%b\t%b\n" % (self.number, kind, self.text)


def decode_result(record: bytes) -> LineResult:
    """Return the result of a record, without LF. RecordsDamaged."""
    number, tab, rest = record.partition(b"\t")
    kind, other_tab, text = rest.partition(b"\t")
    if not (tab and other_tab) or kind not in (OUTPUT, ERROR) or not number.isdigit():
        raise RecordsDamaged("a record of a line's result is damaged")
    return LineResult(int(number), kind == OUTPUT, text)


def render_answer(
    number: int, *, request: str, custom_id: str, call: str, status: int, body: Mapping[str, Any]
) -> LineResult:
    """Return the result of a line with an HTTP response; `request` and `call` are ids."""
    response = {"status_code": status, "request_id": call, "body": body}
    text = _write({"id": request, "custom_id": custom_id, "response": response, "error": None})
    return LineResult(number, 200 <= status < 300, text)


def render_unrun(number: int, *, request: str, custom_id: str, code: Unrun) -> LineResult:
    """Return the result of a line that was not run."""
    error = {"code": code, "message": _MESSAGES[code]}
    text = _write({"id": request, "custom_id": custom_id, "response": None, "error": error})
    return LineResult(number, False, text)


def _write(value: Mapping[str, Any]) -> bytes:
    # ASCII, so that half a surrogate pair, which is no valid UTF-8, is returned as it was received
    return json.dumps(value, separators=(",", ":")).encode()


CHUNK_BYTES = 256 * 1024
PIECE_BYTES = 1024 * 1024
STEP_BYTES = 32 * 1024
STEP_LINES = 64
"""Processed between two turns of the event loop, in a millisecond or two."""
_LIST_NAME = "list"
_RECORDS_FOLDER = "lines/"

Wait = Callable[[StoreUnavailable], Awaitable[None]]


class ResultsFolder:
    """Stored results of one batch; `owner` is a name that is unique to this process."""

    def __init__(self, store: ObjectStore, account: str, batch_name: str, owner: str) -> None:
        self._store = store
        self._folder = batch_folder(account, batch_name)
        self._owner = owner

    async def write(self, sequence: int, results: Sequence[LineResult]) -> None:
        """Store results as the object of that sequence number. StoreUnavailable."""
        data = b"".join(result.encode() for result in results)
        await self._store.put(self._key(sequence), data)

    async def list_keys(self) -> list[str]:
        """Return keys of all result objects, in their order. StoreUnavailable."""
        prefix = self._folder + _RECORDS_FOLDER
        return [entry.key async for entry in self._store.list_entries(prefix)]

    async def write_list(self, keys: Sequence[str]) -> ObjectRef:
        """Store the list of keys that the Files are made from. StoreUnavailable.

        Its key contains its digest, so that a list that a status refers to is never overwritten.
        """
        data = "\n".join(keys).encode()
        digest = hashlib.sha256(data).hexdigest()
        key = f"{self._folder}{_LIST_NAME}-{digest[:32]}"
        await self._store.put(key, data)
        return ObjectRef(key=key, bytes=len(data), sha256=digest)

    async def read_list(self, ref: ObjectRef) -> list[str]:
        """Return the keys in a list. ObjectMissing, StoreUnavailable, RecordsDamaged."""
        data = await self._store.get(ref.key)
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise RecordsDamaged("the list of results is not the one that was stored")
        return data.decode().split("\n") if data else []

    async def read(self, keys: Sequence[str]) -> AsyncGenerator[LineResult, None]:
        """Stream all results. ObjectMissing, StoreUnavailable, RecordsDamaged."""
        for key in keys:
            rest = b""
            async with aclosing(self._store.stream(key)) as chunks:
                async for chunk in chunks:
                    *records, rest = (rest + chunk).split(b"\n")
                    for record in records:
                        yield decode_result(record)
                    await asyncio.sleep(0)
            if rest:
                raise RecordsDamaged("an object of results ends within a record")

    async def remove(self) -> None:
        """Remove all results. StoreUnavailable: some may be left."""
        keys = [entry.key async for entry in self._store.list_entries(self._folder)]
        await self._store.delete_many(keys)

    def _key(self, sequence: int) -> str:
        return f"{self._folder}{_RECORDS_FOLDER}{sequence:08d}-{self._owner}"


def read_sequence(key: str) -> int:
    """Return the sequence number of a result object."""
    return int(key.rpartition("/")[2].partition("-")[0])


async def read_pieces(
    store: ObjectStore, segments: Sequence[ObjectRef], wait: Wait | None = None
) -> AsyncGenerator[bytes, None]:
    """Stream an input in pieces, verified: the last piece of a segment follows its digest check.

    No connection stays open between pieces, since hours may pass. With `wait`, a piece is requested
    again after `wait` where the store is unavailable. ContentDamaged, ObjectMissing,
    StoreUnavailable.
    """
    for place, segment in enumerate(segments):
        start, check = 0, Check(segment)
        while start < segment.bytes:
            length = min(PIECE_BYTES, segment.bytes - start)
            try:
                piece = b"".join([part async for part in store.stream(segment.key, start, length)])
            except StoreUnavailable as error:
                if wait is None:
                    raise
                await wait(error)
                continue
            if len(piece) != length:
                raise ContentDamaged(f"segment {place}: not as many bytes as were stored")
            check.update(piece)
            start += length
            if start == segment.bytes and not check.agrees():
                raise ContentDamaged(f"segment {place}: not the bytes that were stored")
            yield piece


async def read_lines(
    store: ObjectStore, segments: Sequence[ObjectRef], wait: Wait | None = None
) -> AsyncGenerator[Line, None]:
    """Stream the lines of an input that are not blank; as `read_pieces`."""
    splitter = LineSplitter()
    async with aclosing(read_pieces(store, segments, wait)) as pieces:
        async for piece in pieces:
            for start in range(0, len(piece), STEP_BYTES):
                for line in splitter.feed(piece[start : start + STEP_BYTES]):
                    yield line
                # a consumer that never waits would block the event loop
                await asyncio.sleep(0)
    for line in splitter.end():
        yield line


async def merge(
    lines: AsyncIterator[Line],
    results: AsyncIterator[LineResult],
    render_unrun: Callable[[Line], Awaitable[LineResult]],
) -> AsyncGenerator[LineResult, None]:
    """Yield one result for each line, in order; `render_unrun` makes those of lines without one.

    Results that wait for an earlier line are in memory: at most as many as the run lets get ahead
    of its oldest line.
    """
    waiting: dict[int, LineResult] = {}
    is_more, unrun = True, 0
    async for line in lines:
        # results are in the order in which lines ended, so later ones are kept until their turn
        while is_more and line.number not in waiting:
            result = await anext(results, None)
            is_more = result is not None
            if result is not None and result.number >= line.number:
                # a killed and resumed run may leave two results of a line; the first counts
                waiting.setdefault(result.number, result)
        found = waiting.pop(line.number, None)
        if found is None:
            unrun += 1
            if unrun % STEP_LINES == 0:
                await asyncio.sleep(0)
            found = await render_unrun(line)
        yield found


async def join_results(
    results: AsyncIterator[LineResult], *, succeeded: bool, count: Callable[[], None]
) -> AsyncGenerator[bytes, None]:
    """Stream the output or the error file; `count` is called for each of its lines."""
    parts: list[bytes] = []
    size = 0
    async for result in results:
        if result.succeeded is not succeeded:
            continue
        count()
        parts += (result.text, b"\n")
        size += len(result.text) + 1
        if size >= CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)
