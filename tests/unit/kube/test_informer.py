"""Watch-fed tables: they never go back, mend what a watch missed, and know when it is silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.kube.informer import HEARTBEAT_SECONDS, RESYNC_SECONDS, Informer
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes, Fault

KIND = "gatewaymodels"
Entries = Informer[str]


def project(obj: dict[str, Any]) -> str | None:
    if obj["spec"] == "odd":
        raise ValueError("cannot be read")
    return None if obj["spec"] == "hidden" else str(obj["spec"])


def put(kube: FakeKubernetes, name: str, spec: str) -> dict[str, Any]:
    return kube.put(KIND, {"metadata": {"name": name}, "spec": spec})


@asynccontextmanager
async def following(kube: FakeKubernetes) -> AsyncIterator[Entries]:
    table: Entries = Informer(kube, KIND, project)
    running = asyncio.create_task(table.run())
    await table.wait_synced()
    yield table
    assert not running.done(), running.exception()
    running.cancel()


def entries(table: Entries) -> dict[str, str]:
    return dict(table.items())


@in_virtual_time
async def test_informer_starts_with_existing_objects() -> None:
    kube = FakeKubernetes()
    table: Entries = Informer(kube, KIND, project)
    assert not table.synced
    assert table.staleness == float("inf")
    put(kube, "a", "1")
    async with following(kube) as table:
        assert table.synced
        assert entries(table) == {"a": "1"}
        assert table.get("a") == "1"
        assert table.get("b") is None


@in_virtual_time
async def test_informer_applies_and_reports_changes() -> None:
    kube = FakeKubernetes()
    put(kube, "a", "1")
    async with following(kube) as table:
        told: list[str] = []
        table.subscribe(told.append)
        put(kube, "a", "2")
        put(kube, "b", "1")
        await asyncio.sleep(0.1)
        assert entries(table) == {"a": "2", "b": "1"}
        kube.remove(KIND, "a")
        await asyncio.sleep(0.1)
        assert entries(table) == {"b": "1"}
        assert told == ["a", "b", "a"]


@in_virtual_time
async def test_removed_object_does_not_come_back_by_an_older_event() -> None:
    kube = FakeKubernetes()
    older = put(kube, "a", "1")
    async with following(kube) as table:
        newer = put(kube, "a", "2")
        table.upsert(newer)
        table.remove(older)
        assert table.get("a") == "2"
        table.remove(newer)
        table.upsert(older)
        assert table.get("a") is None
        kube.remove(KIND, "a")
        again = put(kube, "a", "3")
        assert table.upsert(again) == "3"


@in_virtual_time
async def test_object_projected_to_none_is_left_out() -> None:
    kube = FakeKubernetes()
    async with following(kube) as table:
        put(kube, "a", "1")
        await asyncio.sleep(0.1)
        put(kube, "a", "hidden")
        await asyncio.sleep(0.1)
        assert entries(table) == {}


@in_virtual_time
async def test_object_that_cannot_be_read_harms_no_other() -> None:
    kube = FakeKubernetes()
    put(kube, "a", "odd")
    put(kube, "b", "1")
    async with following(kube) as table:
        put(kube, "c", "odd")
        put(kube, "d", "1")
        await asyncio.sleep(0.1)
        assert entries(table) == {"b": "1", "d": "1"}
        put(kube, "a", "mended")
        await asyncio.sleep(0.1)
        assert table.get("a") == "mended"


@in_virtual_time
async def test_list_of_a_lower_version_replaces_all_that_was_known() -> None:
    kube = FakeKubernetes()
    put(kube, "kept", "1")
    async with following(kube) as table:
        put(kube, "kept", "of the lost future")
        put(kube, "lost", "1")
        put(kube, "restored", "1")
        kube.remove(KIND, "restored")
        await asyncio.sleep(0.1)
        # etcd restored: its versions begin anew below the known ones
        restored = FakeKubernetes()
        put(restored, "kept", "1")
        put(restored, "restored", "1")
        table._kube = restored
        await asyncio.sleep(2 * HEARTBEAT_SECONDS)
        put(restored, "new", "1")
        await asyncio.sleep(RESYNC_SECONDS)
        assert entries(table) == {"kept": "1", "restored": "1", "new": "1"}


@in_virtual_time
async def test_wait_ends_at_once_for_a_known_version_and_in_time_for_a_later_one() -> None:
    kube = FakeKubernetes()
    loop = asyncio.get_running_loop()
    async with following(kube) as table:
        version = int(put(kube, "a", "1")["metadata"]["resourceVersion"])
        await asyncio.sleep(0.1)
        began = loop.time()
        assert await table.wait_for_version(version, 5)
        assert loop.time() == began
        assert not await table.wait_for_version(version + 1, 0.5)


class TestSilence:
    @in_virtual_time
    async def test_healthy_watch_is_never_silent_for_longer_than_a_beat(self) -> None:
        async with following(FakeKubernetes()) as table:
            for _ in range(200):
                await asyncio.sleep(0.5)
                assert table.staleness <= HEARTBEAT_SECONDS + 0.1

    @in_virtual_time
    async def test_dead_one_is(self) -> None:
        kube = FakeKubernetes()
        async with following(kube) as table:
            await asyncio.sleep(1)
            kube.away = True
            await asyncio.sleep(60)
            assert table.staleness >= 50
            kube.away = False
            await asyncio.sleep(2 * HEARTBEAT_SECONDS + 3)
            assert table.staleness <= HEARTBEAT_SECONDS


class TestFaults:
    @in_virtual_time
    async def test_changes_during_an_outage_are_seen_afterwards(self) -> None:
        kube = FakeKubernetes()
        put(kube, "a", "1")
        put(kube, "b", "1")
        async with following(kube) as table:
            kube.away = True
            put(kube, "a", "2")
            kube.remove(KIND, "b")
            await asyncio.sleep(30)
            kube.away = False
            await asyncio.sleep(10)
            assert entries(table) == {"a": "2"}

    @in_virtual_time
    async def test_deletion_that_no_watch_can_show_any_more_is_found_by_a_list(self) -> None:
        kube = FakeKubernetes()
        put(kube, "a", "1")
        put(kube, "b", "1")
        async with following(kube) as table:
            told: list[str] = []
            table.subscribe(told.append)
            kube.away = True
            kube.remove(KIND, "b")
            put(kube, "c", "1")
            await asyncio.sleep(10)
            kube.compact()
            kube.away = False
            await asyncio.sleep(10)
            assert entries(table) == {"a": "1", "c": "1"}
            assert sorted(told) == ["b", "c"]
            assert table.repairs == 2

    @in_virtual_time
    async def test_watch_that_fails_again_and_again_is_not_hammered(self) -> None:
        kube = FakeKubernetes()
        async with following(kube):
            begin = len(kube.calls)
            kube.away = True
            await asyncio.sleep(60)
            assert len(kube.calls) - begin < 60

    @in_virtual_time
    async def test_version_that_is_always_too_old_is_not_hammered(self) -> None:
        kube = FakeKubernetes()
        async with following(kube):
            begin = len(kube.calls)
            for _ in range(600):
                kube.compact()
                put(kube, "a", "1")
                kube.compact()
                await asyncio.sleep(0.1)
            assert len(kube.calls) - begin < 3000

    @in_virtual_time
    async def test_change_missed_by_the_watch_is_found_by_the_next_list(self) -> None:
        kube = FakeKubernetes()
        put(kube, "a", "1")
        async with following(kube) as table:
            kube._history.clear()
            put(kube, "a", "2")
            kube._history.clear()
            await asyncio.sleep(60)
            assert table.get("a") == "1"
            await asyncio.sleep(RESYNC_SECONDS)
            assert table.get("a") == "2"
            assert table.repairs == 1

    @in_virtual_time
    async def test_first_list_that_fails_is_tried_again(self) -> None:
        kube = FakeKubernetes()
        put(kube, "a", "1")
        kube.order_faults("list_page", *[Fault(KubernetesUnavailable("away"))] * 4)
        async with following(kube) as table:
            assert entries(table) == {"a": "1"}

    @in_virtual_time
    async def test_list_of_many_pages_is_read_whole(self) -> None:
        kube = FakeKubernetes()
        for number in range(1200):
            put(kube, f"n{number}", "1")
        async with following(kube) as table:
            assert len(table.items()) == 1200


class TestOffer:
    @in_virtual_time
    async def test_object_read_by_name_replaces_an_older_version(self) -> None:
        kube = FakeKubernetes()
        old = put(kube, "a", "1")
        new = put(kube, "a", "2")
        table: Entries = Informer(kube, KIND, project)
        assert table.upsert(old) == "1"
        assert table.upsert(new) == "2"
        assert table.upsert(old) == "2"

    @in_virtual_time
    async def test_stale_read_does_not_restore_a_deleted_object(self) -> None:
        kube = FakeKubernetes()
        old = put(kube, "a", "1")
        async with following(kube) as table:
            kube.remove(KIND, "a")
            await asyncio.sleep(0.1)
            assert table.upsert(old) is None
            assert entries(table) == {}
            new = put(kube, "a", "2")
            assert table.upsert(new) == "2"


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
def test_informer_converges_to_the_api_after_any_faults(
    steps: list[tuple[str, str, float]],
) -> None:
    @in_virtual_time
    async def run() -> None:
        kube = FakeKubernetes()
        async with following(kube) as table:
            for number, (action, name, seconds) in enumerate(steps):
                if action == "put":
                    put(kube, name, str(number))
                elif action == "remove" and (KIND, name) in kube._objects:
                    kube.remove(KIND, name)
                elif action in ("away", "back"):
                    kube.away = action == "away"
                elif action == "compact":
                    kube.compact()
                await asyncio.sleep(seconds if action == "wait" else 0)
            kube.away = False
            await asyncio.sleep(20)
            expected = {o["metadata"]["name"]: o["spec"] for o in kube.list_objects(KIND)}
            assert entries(table) == expected

    run()
