"""Reading the journal: few calls, however many ask; no object hidden; damage told by process."""

import asyncio
from typing import Any

import pytest

from gateway_core.billing.journal import JournalDamaged, name_object
from gateway_core.billing.journal_store import JournalStore
from tests.fakes.clock import in_virtual_time
from tests.fakes.objects import FakeObjects
from tests.unit.billing.journal_harness import make_record, store_object


class SlowObjects(FakeObjects):
    """Each read takes 20 ms and each listing 100; both are counted."""

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


async def fill(store: SlowObjects, processes: int, *sequences: int) -> None:
    for process in range(processes):
        for n in sequences:
            await store_object(store, f"p{process}", n, make_record(n))


@in_virtual_time
async def test_many_that_ask_at_a_time_cost_two_reads() -> None:
    store = SlowObjects()
    await fill(store, 3, 1, 2, 3)
    backlog = JournalStore(store)
    first = asyncio.create_task(backlog.read_all())
    await asyncio.sleep(0.05)
    late = [asyncio.create_task(backlog.read_all()) for _ in range(200)]
    await asyncio.sleep(0)
    late[7].cancel()
    # it is there before any of those reads begins, so all of them have to find it
    await store_object(store, "p0", 4, make_record(4))
    assert len(await first) == 9
    found = await asyncio.gather(*late, return_exceptions=True)
    assert {len(part) for part in found if not isinstance(part, BaseException)} == {10}
    assert sum(isinstance(part, BaseException) for part in found) == 1
    assert store.listings == 2


@in_virtual_time
async def test_object_stored_before_a_listing_is_found() -> None:
    store, backlog = SlowObjects(), None
    backlog = JournalStore(store)
    reads = []
    for n in range(1, 30):
        await store_object(store, "p", n, make_record(n))
        reads.append((n, asyncio.create_task(backlog.read_all())))
        await asyncio.sleep(0.03)
    for n, read in reads:
        assert len(await read) >= n


@in_virtual_time
async def test_missing_object_is_read_once_at_a_time() -> None:
    store = SlowObjects()
    await fill(store, 32, 8, 10)
    backlog = JournalStore(store)
    await backlog.read_all()
    assert len(store.reads) == 32 * 4
    begun = asyncio.get_running_loop().time()
    for _ in range(10):
        await backlog.read_all()
    assert len(store.reads) == 32 * 4
    assert asyncio.get_running_loop().time() - begun == pytest.approx(10 * 0.1)
    await fill(store, 1, 9)
    assert len(await backlog.read_all()) == 65, "one that is listed again is read"


@in_virtual_time
async def test_object_missing_from_a_listing_is_found() -> None:
    store = SlowObjects()
    await fill(store, 2, 1, 2, 3, 4)
    store.hidden = {name_object("p0", 1), name_object("p0", 2), name_object("p1", 3)}
    assert len(await JournalStore(store).read_all()) == 8


@in_virtual_time
async def test_failed_read_reaches_all_waiters_and_is_not_kept() -> None:
    store = SlowObjects()
    await fill(store, 1, 1)
    await store.put(name_object("p1", 1), b"{}")
    backlog = JournalStore(store)
    found = await asyncio.gather(*(backlog.read_all() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(part, JournalDamaged) for part in found)
    await store.delete(name_object("p1", 1))
    assert len(await backlog.read_all()) == 1


@in_virtual_time
async def test_damage_is_that_of_one_process() -> None:
    store = SlowObjects()
    await fill(store, 3, 4, 5)
    await store.put(name_object("p1", 4), b"{}")
    await store.put(name_object("p1", 3), b"{}")
    await store_object(store, "p2", 20_000, make_record(1))
    store.hidden = {name_object("p1", 3)}
    found = await JournalStore(store).read_whole()
    assert set(found.damaged) == {("p1", 3), ("p1", 4), ("p2", 4)}
    assert [(obj.process, obj.sequence) for obj in found.objects if obj.process != "p2"] == [
        ("p0", 4),
        ("p0", 5),
        ("p1", 5),
    ]
    assert len(found.objects) == 6
