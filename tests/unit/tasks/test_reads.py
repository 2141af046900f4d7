"""Sources of the answer to a poll (contract §2.3; I3, I8)."""

from typing import Any

import pytest

from gateway_core.api.ids import id_to_name
from gateway_core.tasks.archive import archive_task
from gateway_core.tasks.finder import TaskCache
from tests.unit.apiserver.gateway import (
    COMPLETED,
    FAILED,
    PATH,
    Gateway,
    body,
    call,
    random_id,
)

LATER = "2999-01-01T00:00:00Z"
PAST = "2020-01-01T00:00:00Z"


async def end_task(gateway: Gateway, status: dict[str, Any]) -> str:
    """The id of a new task with this status."""
    task_id: str = (await gateway.create()).json["id"]
    gateway.end_task(task_id, status)
    return task_id


async def archive(gateway: Gateway, completed: str) -> str:
    """The id of a task that is in the archive alone."""
    task_id = await end_task(gateway, {**COMPLETED, "completionTime": completed})
    await archive_task(gateway.store, gateway.task_object(task_id))
    gateway.kube.remove("gatewaytasks", id_to_name(task_id))
    return task_id


async def test_new_task_is_processing(gateway: Gateway) -> None:
    task_id = (await gateway.create()).json["id"]
    answer = await gateway.poll(task_id)
    assert answer.status == 200
    assert answer.json == {"id": task_id, "status": "processing"}
    assert answer.headers["cache-control"] == "no-store"
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize("phase", ["Submitting", "Running", "SomethingNew"])
async def test_live_phases_are_processing(gateway: Gateway, phase: str) -> None:
    task_id = await end_task(gateway, {"phase": phase})
    assert (await gateway.poll(task_id)).json["status"] == "processing"


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (FAILED, {"status": "failed", "error": "The provider rejected an input image."}),
        (
            COMPLETED,
            {
                "status": "completed",
                "videos": [{"url": "https://media.example.com/v.mp4"}],
                "usage": {"cost": 0.5},
            },
        ),
    ],
    ids=["failed", "completed"],
)
async def test_ended_task_has_its_result(
    gateway: Gateway, status: dict[str, Any], fields: dict[str, Any]
) -> None:
    task_id = await end_task(gateway, status)
    assert (await gateway.poll(task_id)).json == {"id": task_id, **fields}


async def test_task_of_another_account_is_answered_as_unknown(gateway: Gateway) -> None:
    task_id = (await gateway.create()).json["id"]
    foreign = await gateway.poll(task_id, key=gateway.other_key)
    unknown = await gateway.poll(random_id(gateway.mint))
    assert foreign.status == unknown.status == 404
    assert foreign.body == unknown.body
    assert set(foreign.headers) == set(unknown.headers)


async def test_foreign_id_causes_no_read(gateway: Gateway) -> None:
    task_id = (await gateway.create()).json["id"]
    gateway.kube.calls.clear()
    assert (await gateway.poll(task_id, key=gateway.other_key)).status == 404
    assert (await gateway.poll("task_" + "a" * 26)).status == 404
    assert gateway.kube.calls == []


@pytest.mark.parametrize(
    "wire_id", ["x", "task_", "task-abc", "task_A", "task_" + "a" * 58, "task_é"]
)
async def test_invalid_id_causes_no_read(gateway: Gateway, wire_id: str) -> None:
    gateway.kube.calls.clear()
    assert (await gateway.poll(wire_id)).status == 404
    assert gateway.kube.calls == []


async def test_task_named_by_an_admin_is_found_by_its_account_alone(gateway: Gateway) -> None:
    gateway.put_task("task_by-hand")
    assert (await gateway.poll("task_by-hand")).json["status"] == "processing"
    gateway.kube.calls.clear()
    assert (await gateway.poll("task_by-hand", key=gateway.other_key)).status == 404
    taken = list(gateway.kube.calls)
    gateway.kube.calls.clear()
    assert (await gateway.poll("task_nothing", key=gateway.other_key)).status == 404
    assert gateway.kube.calls == taken


async def test_task_under_another_path_is_404(gateway: Gateway) -> None:
    gateway.put_model("other", service="other")
    task_id = (await gateway.create()).json["id"]
    answer = await gateway.get(f"/api/v1/other/reference_to_video/{task_id}")
    assert answer.status == 404
    assert answer.json == (await gateway.poll(random_id(gateway.mint))).json


async def test_tasks_of_a_removed_model_can_be_read(gateway: Gateway) -> None:
    task_id = (await gateway.create()).json["id"]
    gateway.kube.remove("gatewaymodels", "sim-q4-reference-to-video")
    assert (await gateway.poll(task_id)).status == 200
    assert (await gateway.create()).status == 404
    assert (await call(gateway.app, "GET", f"{PATH}/{task_id}")).status == 404


async def test_applied_model_is_routed_at_once(gateway: Gateway) -> None:
    path = "/api/v1/new/reference_to_video"
    assert (await gateway.create(body(model="new"), path=path)).status == 404
    gateway.put_model("new", service="new")
    assert (await gateway.create(body(model="new"), path=path)).status == 202
    gateway.put_model("new", service="new", disabled=True)
    assert (await gateway.create(body(model="new"), path=path)).status == 404


async def test_model_of_another_path_is_unknown(gateway: Gateway) -> None:
    gateway.put_model("other", service="other")
    assert (await gateway.create(body(model="other"))).status == 400


async def test_create_is_unavailable_before_models_are_listed(gateway: Gateway) -> None:
    fresh = Gateway()
    fresh.models.synced = False
    fresh.models.forget("sim-q4-reference-to-video")
    assert (await fresh.create()).status == 503


class TestReadThrough:
    async def test_task_missing_from_the_table_is_read(self, gateway: Gateway) -> None:
        task_id = (await gateway.create()).json["id"]
        gateway.tasks.forget(id_to_name(task_id))
        assert (await gateway.poll(task_id)).json["status"] == "processing"

    async def test_final_state_is_always_read_from_memory(self, gateway: Gateway) -> None:
        task_id = (await gateway.create(body(callback_url="https://e.com/h"))).json["id"]
        gateway.end_task(task_id, COMPLETED)
        gateway.kube.away = True
        gateway.tasks.staleness = 1000.0
        assert (await gateway.poll(task_id)).json["status"] == "completed"

    async def test_processing_with_a_callback_is_read_once_a_second(self, gateway: Gateway) -> None:
        task_id = (await gateway.create(body(callback_url="https://e.com/h"))).json["id"]
        gateway.tasks.cut = True
        gateway.end_task(task_id, COMPLETED)
        gateway.kube.calls.clear()
        for _ in range(5):
            assert (await gateway.poll(task_id)).json["status"] == "completed"
        assert gateway.kube.calls == [("get", "gatewaytasks")]

    async def test_processing_without_one_is_read_from_memory(self, gateway: Gateway) -> None:
        task_id = (await gateway.create()).json["id"]
        gateway.kube.calls.clear()
        assert (await gateway.poll(task_id)).json["status"] == "processing"
        assert gateway.kube.calls == []

    async def test_task_is_read_while_the_watch_is_silent(self, gateway: Gateway) -> None:
        task_id = (await gateway.create()).json["id"]
        gateway.tasks.cut = True
        gateway.end_task(task_id, FAILED)
        assert (await gateway.poll(task_id)).json["status"] == "processing"
        gateway.tasks.staleness = 5.1
        assert (await gateway.poll(task_id)).json["status"] == "failed"
        gateway.tasks.staleness = 0.0
        assert (await gateway.poll(task_id)).json["status"] == "failed"

    async def test_without_the_record_the_last_known_state_is_returned(
        self, gateway: Gateway
    ) -> None:
        task_id = (await gateway.create(body(callback_url="https://e.com/h"))).json["id"]
        gateway.kube.away = True
        assert (await gateway.poll(task_id)).json["status"] == "processing"

    async def test_unknown_task_is_503_without_the_record(self, gateway: Gateway) -> None:
        gateway.kube.away = True
        answer = await gateway.poll(random_id(gateway.mint))
        assert answer.status == 503
        assert set(answer.json) == {"error"}


SETTLED = {**COMPLETED, "work": "Settled"}


class TestSettled:
    """Tasks with no work left are no part of the watch: how many there are costs nothing."""

    async def test_settled_task_is_read_once_and_then_kept(self, gateway: Gateway) -> None:
        task_id = await end_task(gateway, SETTLED)
        assert gateway.tasks.get(id_to_name(task_id)) is None
        gateway.kube.calls.clear()
        for _ in range(3):
            assert (await gateway.poll(task_id)).json["status"] == "completed"
        assert gateway.kube.calls == [("get", "gatewaytasks")]
        gateway.kube.away = gateway.store.away = True
        assert (await gateway.poll(task_id)).json["status"] == "completed"

    async def test_task_that_settles_after_a_read_is_completed(self, gateway: Gateway) -> None:
        task_id = (await gateway.create(body(callback_url="https://e.com/h"))).json["id"]
        assert (await gateway.poll(task_id)).json["status"] == "processing"
        gateway.end_task(task_id, SETTLED)
        assert (await gateway.poll(task_id)).json["status"] == "completed"

    async def test_task_that_settles_while_it_is_read_is_completed(self, gateway: Gateway) -> None:
        task_id = (await gateway.create(body(callback_url="https://e.com/h"))).json["id"]
        read = gateway.kube.get

        async def read_late(plural: str, name: str) -> dict[str, Any]:
            gateway.kube.get = read  # type: ignore[method-assign]
            behind = await read(plural, name)
            gateway.end_task(task_id, SETTLED)
            return behind

        gateway.kube.get = read_late  # type: ignore[method-assign]
        assert (await gateway.poll(task_id)).json["status"] == "completed"

    async def test_settled_task_of_another_account_is_unknown(self, gateway: Gateway) -> None:
        task_id = await end_task(gateway, SETTLED)
        await gateway.poll(task_id)
        assert (await gateway.poll(task_id, key=gateway.other_key)).status == 404


class TestTaskCache:
    now = 0.0

    def make(self, gateway: Gateway) -> TaskCache:
        return TaskCache(gateway.tasks, gateway.accounts, most_ended=2, clock=lambda: self.now)

    async def test_least_recently_read_task_is_dropped_first(self, gateway: Gateway) -> None:
        table = self.make(gateway)
        names = []
        for _ in range(3):
            task_id = await end_task(gateway, SETTLED)
            names.append(id_to_name(task_id))
            table.upsert(gateway.task_object(task_id))
            table.get(names[0])
        assert [table.get(name) is not None for name in names] == [True, False, True]

    async def test_kept_task_expires_after_an_hour(self, gateway: Gateway) -> None:
        table = self.make(gateway)
        task_id = await end_task(gateway, SETTLED)
        assert table.upsert(gateway.task_object(task_id)) is not None
        self.now += 3601
        assert table.get(id_to_name(task_id)) is None

    async def test_result_is_not_kept_for_the_next_account_of_the_name(
        self, gateway: Gateway
    ) -> None:
        table = self.make(gateway)
        task_id = await end_task(gateway, SETTLED)
        assert table.upsert(gateway.task_object(task_id)) is not None
        spec = (gateway.kube.find("gatewayaccounts", "demo") or {})["spec"]
        gateway.kube.remove("gatewayaccounts", "demo")
        made = gateway.kube.put("gatewayaccounts", {"metadata": {"name": "demo"}, "spec": spec})
        gateway.accounts.upsert(made)
        assert table.get(id_to_name(task_id)) is None

    async def test_cache_follows_the_open_tasks(self, gateway: Gateway) -> None:
        table = self.make(gateway)
        heard: list[str] = []
        table.subscribe(heard.append)
        name = id_to_name((await gateway.create()).json["id"])
        assert (table.synced, table.staleness, list(dict(table.items()))) == (True, 0.0, [name])
        assert heard == [name]


class TestArchive:
    async def test_removed_task_is_answered_from_the_archive(self, gateway: Gateway) -> None:
        task_id = await end_task(gateway, {**COMPLETED, "completionTime": LATER})
        before = await gateway.poll(task_id)
        await archive_task(gateway.store, gateway.task_object(task_id))
        gateway.kube.remove("gatewaytasks", id_to_name(task_id))
        assert (await gateway.poll(task_id)).body == before.body

    async def test_archive_answers_while_the_record_is_away(self, gateway: Gateway) -> None:
        task_id = await archive(gateway, LATER)
        gateway.kube.away = True
        assert (await gateway.poll(task_id)).json["status"] == "completed"

    async def test_archived_task_past_its_time_is_404(self, gateway: Gateway) -> None:
        assert (await gateway.poll(await archive(gateway, PAST))).status == 404

    async def test_archived_task_past_its_time_makes_way_for_another_of_its_name(
        self, gateway: Gateway
    ) -> None:
        """As when an Idempotency-Key is used again after 30 days."""
        task_id = await end_task(gateway, {**COMPLETED, "completionTime": PAST})
        old = gateway.task_object(task_id)
        await archive_task(gateway.store, old)
        new = {**old, "metadata": {**old["metadata"], "uid": "another"}}
        await archive_task(gateway.store, {**new, "status": {**FAILED, "completionTime": LATER}})
        gateway.kube.remove("gatewaytasks", id_to_name(task_id))
        assert (await gateway.poll(task_id)).json["status"] == "failed"

    async def test_poll_is_503_without_the_archive(self, gateway: Gateway) -> None:
        gateway.store.away = True
        assert (await gateway.poll(random_id(gateway.mint))).status == 503
