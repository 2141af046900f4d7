"""Reads of the journal: few calls for many readers, no object missed, damage by process."""

import asyncio

import pytest

from gateway_core.billing.journal import JournalDamaged, name_object
from gateway_core.billing.journal_store import JournalStore
from tests.fakes.clock import in_virtual_time
from tests.unit.billing.journal_harness import SlowObjects, make_record, store_object


async def fill(store: SlowObjects, processes: int, *sequences: int) -> None:
    for process in range(processes):
        for n in sequences:
            await store_object(store, f"p{process}", n, make_record(n))


@in_virtual_time
async def test_concurrent_readers_share_two_reads() -> None:
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
async def test_object_is_read_once_by_repeated_reads() -> None:
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
async def test_damaged_objects_are_reported_by_process() -> None:
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
