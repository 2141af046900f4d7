"""Records of the usage journal, aggregated as the operator does; slow and faulty stores."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from gateway_core.billing.journal import CallRecord, decode_object, encode_object, name_object
from gateway_core.billing.journal_store import JournalStore, aggregate_calls, divide_objects
from gateway_core.storage.objects import StoredObject, StoreUnavailable
from tests.fakes.objects import FakeObjects

NOW = datetime(2026, 11, 21, 23, 58, tzinfo=UTC)
LATER = NOW + timedelta(minutes=4)


def make_record(number: int, micros: int = 5, **changes: Any) -> CallRecord:
    base: dict[str, Any] = {
        "call": f"call-{number}",
        "account": "demo",
        "time": NOW,
        "model_id": "m",
        "operation": "llm/chat",
        "micros": micros,
        "key_name": "key-a",
        "guardrail_names": ("grd-x",),
        "input_tokens": 10,
        "output_tokens": 3,
        "cached_tokens": 2,
        "written_tokens": 1,
        "output_audio_tokens": 1,
    }
    return CallRecord(**{**base, **changes})


async def store_object(
    store: FakeObjects, process: str, sequence: int, *records: CallRecord
) -> None:
    await store.put(name_object(process, sequence), encode_object(process, sequence, records))


async def fold_round(
    kube: Any,
    store: Any,
    most: int = 3,
    last_seen: dict[str, float] | None = None,
    now: datetime = LATER,
) -> None:
    """One round of one folder: some of the oldest objects of each process.

    Processes are taken for ended once none of them has been seen for longer than a rebuild takes.
    """
    backlog = JournalStore(store)
    numbers = (await backlog.list_sequences()).numbers
    clock = asyncio.get_running_loop().time()
    seen = last_seen if last_seen is not None else {}
    seen.update(dict.fromkeys(numbers, clock))
    names = ((p, n) for p, some in numbers.items() for n in some[:most])
    objects = (await backlog.read(names)).objects
    for part in divide_objects(objects):
        _, left = await aggregate_calls(
            kube, backlog, part, lambda p: clock - seen.get(p, 0) > 1, now
        )
        objects = [obj for obj in objects if obj.process not in left]
    await backlog.remove((obj.process, obj.sequence) for obj in objects)


class FaultyStore(FakeObjects):
    """Object store whose first puts fail as `faults` names, before or after they are stored."""

    def __init__(self, *faults: str, seconds: float = 0.0) -> None:
        super().__init__()
        self.faults = list(faults)
        self.seconds = seconds
        self.puts: list[tuple[str, bytes]] = []

    async def put(self, key: str, data: bytes) -> StoredObject:
        self.puts.append((key, data))
        await asyncio.sleep(self.seconds)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refused":
            raise StoreUnavailable("away")
        stored = await super().put(key, data)
        if fault == "unacknowledged":
            raise StoreUnavailable("no answer")
        return stored

    def list_records(self) -> list[CallRecord]:
        objects = [decode_object(key, data) for key, data in sorted(self.contents.items())]
        assert [obj.sequence for obj in objects] == list(range(1, len(objects) + 1))
        return [record for obj in objects for record in obj.records]


class SlowObjects(FakeObjects):
    """Each read takes 20 ms and each listing 100; listings leave out `hidden`."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.listings = 0
        self.hidden: set[str] = set()

    async def get(self, key: str) -> bytes:
        self.reads.append(key)
        await asyncio.sleep(0.02)
        return await super().get(key)

    async def list_entries(self, prefix: str, *, start_after: str | None = None) -> Any:
        self.listings += 1
        entries = [entry async for entry in super().list_entries(prefix, start_after=start_after)]
        await asyncio.sleep(0.1)
        for entry in entries:
            if entry.key not in self.hidden:
                yield entry


class PausedPort:
    """The record or a store as one process reaches it: each call waits before and after."""

    def __init__(self, port: Any, pauses: Iterator[float]) -> None:
        self._port = port
        self._pauses = pauses

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        return self._list if name == "list_entries" else partial(self._call, method)

    async def _call(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        await asyncio.sleep(next(self._pauses))
        answer = await method(*args, **named)
        await asyncio.sleep(next(self._pauses))
        return answer

    async def _list(self, prefix: str) -> Any:
        entries = [entry async for entry in self._port.list_entries(prefix)]
        await asyncio.sleep(next(self._pauses))
        for entry in entries:
            yield entry
