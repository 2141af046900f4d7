"""What the operator knows of its tasks: it never goes back, and nothing comes back to life."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.api.ids import TASK_FINALIZER
from gateway_operator.tasks import cache
from gateway_operator.tasks.cache import TaskCache


def make(version: int, name: str = "task-a", *, held: bool = True, **more: Any) -> dict[str, Any]:
    finalizers = [TASK_FINALIZER] if held else []
    metadata = {"name": name, "resourceVersion": str(version), "finalizers": finalizers}
    request = {"accountName": "demo", "service": "sim", "action": "a", "modelId": "m"}
    return {"metadata": metadata, "spec": {"request": request}, **more}


def known(live: TaskCache) -> dict[str, Any]:
    task = live.get("task-a")
    assert task is not None
    return task.source


def test_newer_version_replaces_older() -> None:
    live = TaskCache()
    assert live.upsert(make(1))
    assert live.upsert(make(2))
    assert live.version("task-a") == 2


@pytest.mark.parametrize("version", [1, 2])
def test_older_or_equal_version_is_ignored(version: int) -> None:
    """An equal one is the echo of an own write, which changes nothing."""
    live = TaskCache()
    live.upsert(make(2))
    assert not live.upsert(make(version))
    assert live.version("task-a") == 2


def test_versions_compare_as_numbers() -> None:
    live = TaskCache()
    live.upsert(make(9))
    assert live.upsert(make(10))


def test_old_event_does_not_bring_back_dropped_task() -> None:
    live = TaskCache()
    live.upsert(make(5))
    live.drop("task-a")
    assert not live.upsert(make(4))
    assert not live.upsert(make(5))
    assert live.get("task-a") is None


def test_recreated_task_is_kept() -> None:
    live = TaskCache()
    live.upsert(make(5))
    live.drop("task-a")
    assert live.upsert(make(6))


def test_deletion_seen_without_its_last_version_is_remembered_under_its_own() -> None:
    live = TaskCache()
    live.upsert(make(5))
    assert not live.leave(make(8, held=False))
    assert not live.upsert(make(7))
    assert live.get("task-a") is None


def test_dropping_twice_forgets_nothing() -> None:
    live = TaskCache()
    live.upsert(make(5))
    live.drop("task-a")
    live.drop("task-a")
    assert not live.upsert(make(5))


def test_tombstones_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_GONE", 10)
    live = TaskCache()
    for number in range(50):
        live.upsert(make(number + 1, f"task-{number}"))
        live.drop(f"task-{number}")
    assert len(live._gone) == 10
    assert not live.upsert(make(50, "task-49"))
    assert len(live) == 0


class TestLeaving:
    """The watch shows a task that ended as it was before, under the version that ended it."""

    def test_task_leaving_the_watch_is_read_by_name(self) -> None:
        live = TaskCache()
        running = make(5, status={"phase": "Running"})
        live.upsert(running)
        assert live.leave(make(6, status={"phase": "Running"}))
        assert live.is_unread("task-a")
        assert live.version("task-a") == 5

    def test_read_clears_the_need_to_read(self) -> None:
        live = TaskCache()
        live.upsert(make(5))
        live.leave(make(6))
        assert live.upsert(make(6, status={"phase": "Completed"}))
        assert not live.is_unread("task-a")

    def test_stale_read_does_not_clear_the_need_to_read(self) -> None:
        live = TaskCache()
        live.upsert(make(5))
        live.leave(make(8))
        live.upsert(make(7))
        assert live.is_unread("task-a")

    def test_own_write_need_not_be_read(self) -> None:
        live = TaskCache()
        ended = make(6, status={"phase": "Completed"})
        live.upsert(ended)
        assert live.leave(make(6, status={"phase": "Running"}))
        assert not live.is_unread("task-a")
        assert known(live) == ended

    def test_closed_task_need_not_be_read(self) -> None:
        live = TaskCache()
        live.upsert(make(7))
        live.drop("task-a")
        live.leave(make(6))
        assert not live.is_unread("task-a")

    def test_task_found_gone_need_not_be_read(self) -> None:
        live = TaskCache()
        live.leave(make(6))
        assert live.is_unread("task-a")
        live.drop("task-a")
        assert not live.is_unread("task-a")


def test_managed_fields_are_dropped() -> None:
    live = TaskCache()
    obj = make(1)
    obj["metadata"]["managedFields"] = [{}]
    live.upsert(obj)
    assert "managedFields" not in known(live)["metadata"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["offer", "leave", "gone", "drop"]),
            st.integers(min_value=1, max_value=20),
        ),
        max_size=30,
    )
)
def test_version_never_decreases_in_any_order_of_events(
    events: list[tuple[str, int]],
) -> None:
    live, highest = TaskCache(), -1
    for kind, version in events:
        if kind == "offer":
            live.upsert(make(version))
        elif kind == "leave":
            live.leave(make(version))
        elif kind == "gone":
            live.leave(make(version, held=False))
        else:
            live.drop("task-a")
        if "task-a" in live.names():
            assert live.version("task-a") >= highest
            highest = live.version("task-a")


def make_running(name: str, job_id: str) -> dict[str, Any]:
    return make(1, name, status={"upstream": {"providerName": "sim", "jobId": job_id}})


def test_job_belongs_to_one_live_task() -> None:
    live = TaskCache()
    live.upsert(make_running("task-a", "j1"))
    assert not live.claim_job("sim", "j1", "task-b")
    assert live.claim_job("sim", "j1", "task-a")
    assert live.claim_job("other", "j1", "task-b"), "another provider's ids are its own"
    live.drop("task-a")
    assert not live.claim_job("sim", "j1", "task-c"), "a late answer may still name it"


def test_past_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_GONE", 2)
    live = TaskCache()
    for number in range(3):
        live.upsert(make_running(f"task-{number}", f"j{number}"))
        live.drop(f"task-{number}")
    assert live.claim_job("sim", "j0", "task-a")
    assert not live.claim_job("sim", "j1", "task-a")
