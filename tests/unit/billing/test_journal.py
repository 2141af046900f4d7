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


def start_writer(
    *faults: str, seconds: float = 0.0
) -> tuple[FaultyStore, JournalWriter, asyncio.Task[None]]:
    store = FaultyStore(*faults, seconds=seconds)
    writer = JournalWriter(store, "p")
    return store, writer, asyncio.create_task(writer.run())


@in_virtual_time
async def test_lone_record_is_stored_at_once() -> None:
    store, writer, running = start_writer()
    writer.add(make_record(1))
    assert writer.unsafe == 1
    await asyncio.sleep(0.01)
    assert (store.list_records(), writer.unsafe) == ([make_record(1)], 0)
    running.cancel()


@pytest.mark.parametrize(
    ("seconds", "at_risk"), [(0.1, 0.86), (0.3, 0.96), (0.45, 0.96), (0.6, 1.22)]
)
@in_virtual_time
async def test_unstored_records_are_younger_than_a_second_with_puts_below_half_a_second(
    seconds: float, at_risk: float
) -> None:
    store, writer, running = start_writer(seconds=seconds)
    loop = asyncio.get_running_loop()
    added: list[float] = []
    oldest = 0.0
    for number in range(250):
        writer.add(make_record(number))
        added.append(loop.time())
        await asyncio.sleep(0.02)
        unsafe = added[len(store.list_records()) :]
        oldest = max([oldest, *(loop.time() - at for at in unsafe)])
    assert oldest < at_risk
    begins = max(seconds, min(PAUSE_SECONDS, RISK_SECONDS - seconds))
    assert len(store.contents) <= 250 * 0.02 / begins + 2
    running.cancel()


@in_virtual_time
async def test_writer_pauses_between_objects_after_an_outage() -> None:
    store, writer, running = start_writer("refused")
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
@in_virtual_time
async def test_failed_put_is_repeated_byte_for_byte_before_any_other(fault: str) -> None:
    store, writer, running = start_writer(*[fault] * 9)
    for number in range(50):
        writer.add(make_record(number))
        await asyncio.sleep(0.3)
    await writer.close()
    assert len(set(store.puts[:10])) == 1
    assert store.list_records() == [make_record(number) for number in range(50)]
    await running


@in_virtual_time
async def test_close_stores_everything_and_refuses_further_records() -> None:
    store, writer, running = start_writer("refused", "refused", seconds=0.05)
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
async def test_full_object_is_stored_without_a_pause() -> None:
    store, writer, running = start_writer()
    for number in range(journal.MOST_RECORDS * 2 + 1):
        writer.add(make_record(number))
    await asyncio.sleep(PAUSE_SECONDS / 2)
    assert writer.unsafe <= 1
    sizes = [len(decode_object(*item).records) for item in sorted(store.contents.items())]
    assert max(sizes) <= journal.MOST_RECORDS
    running.cancel()


@in_virtual_time
async def test_writer_reports_an_object_before_and_after_its_put() -> None:
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


def test_process_name_is_derived_from_the_host_and_unique() -> None:
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
