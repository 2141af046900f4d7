"""Watch-fed tables: they never go back, mend what a watch missed, and know when it is silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway_core.kube.informer import BEAT_SECONDS, RESYNC_SECONDS, KubeTable
from gateway_core.kube.records import RecordUnavailable
from tests.fakes.clock import in_virtual_time
from tests.fakes.records import FakeRecords, Fault

KIND = "gatewaymodels"
Entries = KubeTable[str]


def project(obj: dict[str, Any]) -> str | None:
    if obj["spec"] == "odd":
        raise ValueError("cannot be read")
    return None if obj["spec"] == "hidden" else str(obj["spec"])


def put(records: FakeRecords, name: str, spec: str) -> dict[str, Any]:
    return records.put(KIND, {"metadata": {"name": name}, "spec": spec})


@asynccontextmanager
async def following(records: FakeRecords) -> AsyncIterator[Entries]:
    table: Entries = KubeTable(records, KIND, project)
    running = asyncio.create_task(table.run())
    await table.wait_synced()
    yield table
    assert not running.done(), running.exception()
    running.cancel()


def entries(table: Entries) -> dict[str, str]:
    return dict(table.items())


@in_virtual_time
async def test_it_begins_with_what_is_there() -> None:
    records = FakeRecords()
    table: Entries = KubeTable(records, KIND, project)
    assert not table.synced
    assert table.silence == float("inf")
    put(records, "a", "1")
    async with following(records) as table:
        assert table.synced
        assert entries(table) == {"a": "1"}
        assert table.get("a") == "1"
        assert table.get("b") is None


@in_virtual_time
async def test_it_follows_changes_and_tells_of_them() -> None:
    records = FakeRecords()
    put(records, "a", "1")
    async with following(records) as table:
        told: list[str] = []
        table.subscribe(told.append)
        put(records, "a", "2")
        put(records, "b", "1")
        await asyncio.sleep(0.1)
        assert entries(table) == {"a": "2", "b": "1"}
        records.remove(KIND, "a")
        await asyncio.sleep(0.1)
        assert entries(table) == {"b": "1"}
        assert told == ["a", "b", "a"]


@in_virtual_time
async def test_what_is_projected_to_nothing_is_left_out() -> None:
    records = FakeRecords()
    async with following(records) as table:
        put(records, "a", "1")
        await asyncio.sleep(0.1)
        put(records, "a", "hidden")
        await asyncio.sleep(0.1)
        assert entries(table) == {}


@in_virtual_time
async def test_an_object_that_cannot_be_read_harms_no_other() -> None:
    records = FakeRecords()
    put(records, "a", "odd")
    put(records, "b", "1")
    async with following(records) as table:
        put(records, "c", "odd")
        put(records, "d", "1")
        await asyncio.sleep(0.1)
        assert entries(table) == {"b": "1", "d": "1"}
        put(records, "a", "mended")
        await asyncio.sleep(0.1)
        assert table.get("a") == "mended"


class TestSilence:
    @in_virtual_time
    async def test_a_healthy_watch_is_never_silent_for_longer_than_a_beat(self) -> None:
        async with following(FakeRecords()) as table:
            for _ in range(200):
                await asyncio.sleep(0.5)
                assert table.silence <= BEAT_SECONDS + 0.1

    @in_virtual_time
    async def test_a_dead_one_is(self) -> None:
        records = FakeRecords()
        async with following(records) as table:
            await asyncio.sleep(1)
            records.away = True
            await asyncio.sleep(60)
            assert table.silence >= 50
            records.away = False
            await asyncio.sleep(2 * BEAT_SECONDS + 3)
            assert table.silence <= BEAT_SECONDS


class TestFaults:
    @in_virtual_time
    async def test_what_happened_while_it_was_away_is_seen_afterwards(self) -> None:
        records = FakeRecords()
        put(records, "a", "1")
        put(records, "b", "1")
        async with following(records) as table:
            records.away = True
            put(records, "a", "2")
            records.remove(KIND, "b")
            await asyncio.sleep(30)
            records.away = False
            await asyncio.sleep(10)
            assert entries(table) == {"a": "2"}

    @in_virtual_time
    async def test_a_deletion_that_no_watch_can_show_any_more_is_found_by_a_list(self) -> None:
        records = FakeRecords()
        put(records, "a", "1")
        put(records, "b", "1")
        async with following(records) as table:
            told: list[str] = []
            table.subscribe(told.append)
            records.away = True
            records.remove(KIND, "b")
            put(records, "c", "1")
            await asyncio.sleep(10)
            records.compact()
            records.away = False
            await asyncio.sleep(10)
            assert entries(table) == {"a": "1", "c": "1"}
            assert sorted(told) == ["b", "c"]
            assert table.repairs == 2

    @in_virtual_time
    async def test_a_watch_that_fails_again_and_again_is_not_hammered(self) -> None:
        records = FakeRecords()
        async with following(records):
            begin = len(records.calls)
            records.away = True
            await asyncio.sleep(60)
            assert len(records.calls) - begin < 60

    @in_virtual_time
    async def test_a_version_that_is_always_too_old_is_not_hammered(self) -> None:
        records = FakeRecords()
        async with following(records):
            begin = len(records.calls)
            for _ in range(600):
                records.compact()
                put(records, "a", "1")
                records.compact()
                await asyncio.sleep(0.1)
            assert len(records.calls) - begin < 3000

    @in_virtual_time
    async def test_what_a_watch_never_showed_is_found_by_the_next_list(self) -> None:
        records = FakeRecords()
        put(records, "a", "1")
        async with following(records) as table:
            records._history.clear()
            put(records, "a", "2")
            records._history.clear()
            await asyncio.sleep(60)
            assert table.get("a") == "1"
            await asyncio.sleep(RESYNC_SECONDS)
            assert table.get("a") == "2"
            assert table.repairs == 1

    @in_virtual_time
    async def test_a_first_list_that_fails_is_tried_again(self) -> None:
        records = FakeRecords()
        put(records, "a", "1")
        records.order_faults("list_page", *[Fault(RecordUnavailable("away"))] * 4)
        async with following(records) as table:
            assert entries(table) == {"a": "1"}

    @in_virtual_time
    async def test_a_list_of_many_pages_is_read_whole(self) -> None:
        records = FakeRecords()
        for number in range(1200):
            put(records, f"n{number}", "1")
        async with following(records) as table:
            assert len(table.items()) == 1200


class TestOffer:
    @in_virtual_time
    async def test_what_was_read_by_name_is_taken_if_it_is_newer(self) -> None:
        records = FakeRecords()
        old = put(records, "a", "1")
        new = put(records, "a", "2")
        table: Entries = KubeTable(records, KIND, project)
        assert table.offer(old) == "1"
        assert table.offer(new) == "2"
        assert table.offer(old) == "2"

    @in_virtual_time
    async def test_what_was_deleted_does_not_come_back(self) -> None:
        records = FakeRecords()
        old = put(records, "a", "1")
        async with following(records) as table:
            records.remove(KIND, "a")
            await asyncio.sleep(0.1)
            assert table.offer(old) is None
            assert entries(table) == {}
            new = put(records, "a", "2")
            assert table.offer(new) == "2"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "remove", "away", "back", "compact", "wait"]),
            st.sampled_from("abc"),
            st.floats(min_value=0, max_value=5),
        ),
        max_size=30,
    )
)
def test_whatever_happens_it_ends_up_with_what_is_there(
    steps: list[tuple[str, str, float]],
) -> None:
    @in_virtual_time
    async def run() -> None:
        records = FakeRecords()
        async with following(records) as table:
            for number, (action, name, seconds) in enumerate(steps):
                if action == "put":
                    put(records, name, str(number))
                elif action == "remove" and (KIND, name) in records._objects:
                    records.remove(KIND, name)
                elif action in ("away", "back"):
                    records.away = action == "away"
                elif action == "compact":
                    records.compact()
                await asyncio.sleep(seconds if action == "wait" else 0)
            records.away = False
            await asyncio.sleep(20)
            expected = {o["metadata"]["name"]: o["spec"] for o in records.list_objects(KIND)}
            assert entries(table) == expected

    run()
