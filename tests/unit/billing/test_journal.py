"""The writer of the usage journal: soon, in order, never twice, and bounded."""

import asyncio
from collections.abc import Sequence

import pytest

from gateway_core.billing import journal
from gateway_core.billing.journal import (
    PAUSE_SECONDS,
    RISK_SECONDS,
    CallRecord,
    JournalClosed,
    JournalWriter,
    decode_object,
    name_object,
    name_process,
)
from gateway_core.concurrency import Supervisor
from tests.fakes.clock import in_virtual_time
from tests.unit.billing.journal_harness import FaultyStore, make_record


@in_virtual_time
async def test_a_lone_record_is_stored_at_once() -> None:
    store = FaultyStore()
    writer = JournalWriter(store, "p")
    running = asyncio.create_task(writer.run())
    writer.add(make_record(1))
    assert writer.unsafe == 1
    await asyncio.sleep(0.01)
    assert (store.list_records(), writer.unsafe) == ([make_record(1)], 0)
    running.cancel()


@pytest.mark.parametrize(
    ("seconds", "at_risk"), [(0.1, 0.86), (0.3, 0.96), (0.45, 0.96), (0.6, 1.22)]
)
def test_unstored_records_are_younger_than_a_second_with_puts_below_half_a_second(
    seconds: float, at_risk: float
) -> None:
    @in_virtual_time
    async def play() -> None:
        store = FaultyStore(seconds=seconds)
        writer = JournalWriter(store, "p")
        running = asyncio.create_task(writer.run())
        loop = asyncio.get_running_loop()
        added: dict[str, float] = {}
        oldest = 0.0
        for number in range(500):
            writer.add(make_record(number))
            added[f"call-{number}"] = loop.time()
            await asyncio.sleep(0.02)
            stored = {record.call for record in store.list_records()}
            unsafe = [at for call, at in added.items() if call not in stored]
            oldest = max([oldest, *(loop.time() - at for at in unsafe)])
        assert oldest < at_risk
        begins = max(seconds, min(PAUSE_SECONDS, RISK_SECONDS - seconds))
        assert len(store.contents) <= 500 * 0.02 / begins + 2
        running.cancel()

    play()


@in_virtual_time
async def test_the_pause_is_back_after_a_slow_hour() -> None:
    store = FaultyStore("refused")
    writer = JournalWriter(store, "p")
    running = asyncio.create_task(writer.run())
    store.away = True
    writer.add(make_record(0))
    await asyncio.sleep(3600)
    store.away = False
    for number in range(1, 500):
        writer.add(make_record(number))
        await asyncio.sleep(0.02)
    assert len(store.contents) <= 500 * 0.02 / PAUSE_SECONDS + 20
    running.cancel()


@pytest.mark.parametrize("fault", ["refused", "unacknowledged"])
def test_a_failed_put_is_repeated_byte_for_byte_before_any_other(fault: str) -> None:
    @in_virtual_time
    async def play() -> None:
        store = FaultyStore(*[fault] * 9)
        writer = JournalWriter(store, "p")
        running = asyncio.create_task(writer.run())
        for number in range(50):
            writer.add(make_record(number))
            await asyncio.sleep(0.3)
        await writer.close()
        assert len(set(store.puts[:10])) == 1
        assert store.list_records() == [make_record(number) for number in range(50)]
        await running

    play()


@in_virtual_time
async def test_a_graceful_end_stores_everything_and_takes_no_more() -> None:
    store = FaultyStore("refused", "refused", seconds=0.05)
    writer = JournalWriter(store, "p")
    running = asyncio.create_task(writer.run())
    for number in range(3):
        writer.add(make_record(number))
    await writer.close()
    assert len(store.list_records()) == 3
    with pytest.raises(JournalClosed):
        writer.add(make_record(9))
    await running


@in_virtual_time
async def test_caller_waits_when_too_much_is_unstored() -> None:
    store = FaultyStore()
    store.away = True
    writer = JournalWriter(store, "p", most_buffered=10)
    running = asyncio.create_task(writer.run())

    async def add(number: int) -> None:
        writer.add(make_record(number))
        await writer.wait_for_room()

    adding = [asyncio.create_task(add(number)) for number in range(25)]
    await asyncio.sleep(60)
    assert (sum(task.done() for task in adding), writer.unsafe) == (10, 25)
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(1)
    store.away = False
    await asyncio.gather(*adding, closing)
    assert {record.call for record in store.list_records()} == {f"call-{n}" for n in range(25)}
    await running


@in_virtual_time
async def test_an_object_holds_so_many_records_and_a_full_one_is_not_waited_for() -> None:
    store = FaultyStore()
    writer = JournalWriter(store, "p")
    running = asyncio.create_task(writer.run())
    for number in range(journal.MOST_RECORDS * 2 + 1):
        writer.add(make_record(number))
    await asyncio.sleep(PAUSE_SECONDS / 2)
    assert writer.unsafe <= 1
    sizes = [len(decode_object(*item).records) for item in sorted(store.contents.items())]
    assert max(sizes) <= journal.MOST_RECORDS
    running.cancel()


@in_virtual_time
async def test_object_is_reported_before_and_after() -> None:
    store, told = FaultyStore(seconds=0.1), list[tuple[str, int, int]]()
    writer = JournalWriter(
        store,
        "p",
        sent=lambda records, n: told.append(("sent", n, len(records))),
        stored=lambda records, n: told.append(("stored", n, len(records))),
    )
    running = asyncio.create_task(writer.run())
    writer.add(make_record(1))
    await asyncio.sleep(0.05)
    assert told == [("sent", 1, 1)]
    await writer.close()
    assert told == [("sent", 1, 1), ("stored", 1, 1)]
    await running


def test_a_process_is_named_as_its_host_and_as_no_other() -> None:
    name = name_process("api", "Model.Gateway_API-7f9c-" + "x" * 80)
    assert name.startswith("api-model-gateway-api-7f9c-x")
    assert len(name) <= 63
    assert name != name_process("api", "Model.Gateway_API-7f9c-" + "x" * 80)
    assert name_object(name, 1).startswith(f"journal/{name}/")


@in_virtual_time
async def test_run_that_is_begun_again_stores_the_object_it_had_failed_at() -> None:
    failures = [RuntimeError("odd")]

    def note(_kube: Sequence[CallRecord], _sequence: int) -> None:
        if failures:
            raise failures.pop()

    store = FaultyStore()
    writer = JournalWriter(store, "p", sent=note)
    running = asyncio.create_task(Supervisor().keep("journal", writer.run))
    writer.add(make_record(1))
    await asyncio.sleep(0.1)
    assert writer.unsafe == 1
    writer.add(make_record(2))
    await asyncio.sleep(5)
    assert (store.list_records(), writer.unsafe) == ([make_record(1), make_record(2)], 0)
    running.cancel()
