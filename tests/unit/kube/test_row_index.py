"""The index of rows behind the console's lists: complete, in order, bounded, and listed once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any

import pytest

from gateway_apiserver.surfaces.console.rows import (
    MOST_DROPS,
    DayRow,
    project_day_row,
)
from gateway_core.api.errors import Unavailable
from gateway_core.kube import row_index
from gateway_core.kube.informer import Informer
from gateway_core.kube.row_index import LIFE_SECONDS, NEW_SECONDS, RowIndex
from gateway_core.tasks.rows import project_task_row
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes

KIND = "gatewaytasks"
CREATED = "2026-11-24T03:00:00Z"
Step = Callable[["Scene"], Awaitable[None]]


def after(number: int) -> str:
    return f"{CREATED}~{number}~task-{number}"


class Scene:
    """A record of tasks, its index, and what the index tells."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes(clock=lambda: CREATED)
        self.clock = asyncio.get_running_loop().time
        self.index = RowIndex(
            partial(Informer, self.kube), KIND, project_task_row, "tasks", self.clock
        )
        self.told: list[str] = []
        self.index.subscribe(self.told.append)
        for number in (1, 3, 2):
            self.put(number)
        self.put(9, account="guest")

    def put(self, number: int, *, account: str = "demo", phase: str = "Running") -> None:
        meta: dict[str, Any] = {
            "name": f"task-{number}",
            "annotations": {"modelgateway.dev/sequence": str(number)},
        }
        request = {"accountName": account, "modelId": "m1", "service": "sim", "action": "a"}
        obj = {"metadata": meta, "spec": {"request": request}, "status": {"phase": phase}}
        self.kube.put(KIND, obj)

    async def read(
        self, after: str = "", limit: int = 10, account: str = "demo", phase: str = ""
    ) -> list[int] | None:
        page = await self.index.read_page(
            account, after=after, limit=limit, matches=lambda row: phase in ("", row.phase)
        )
        self.more = page.more
        return [row.sequence for row in page.rows] if page.is_read else None

    def count_lists(self) -> int:
        return sum(call == ("list_page", KIND) for call in self.kube.calls)


@asynccontextmanager
async def opened() -> AsyncIterator[Scene]:
    scene = Scene()
    running = asyncio.create_task(scene.index.run())
    yield scene
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def on_scene(step: Step) -> Callable[[], None]:
    """A test that gets a scene, in virtual time."""

    @wraps(step)
    async def run() -> None:
        async with opened() as scene:
            await step(scene)

    del run.__wrapped__  # type: ignore[attr-defined]
    return in_virtual_time(run)


@on_scene
async def test_tasks_come_newest_first_in_pages(scene: Scene) -> None:
    assert await scene.read(limit=2) == [3, 2]
    assert scene.more == after(2)
    assert await scene.read(after(2)) == [1]
    assert await scene.read(after(1)) == []
    assert scene.count_lists() == 1


@on_scene
async def test_filters_follow_the_state_of_tasks(scene: Scene) -> None:
    scene.put(4, phase="Failed")
    assert await scene.read(phase="Running") == [3, 2, 1]
    assert await scene.read(phase="Failed") == [4]
    scene.put(2, phase="Failed")
    await asyncio.sleep(0.1)
    assert await scene.read(phase="Failed") == [4, 2]
    assert await scene.read(phase="Running", limit=1) == [3]
    assert await scene.read(after(3), phase="Running") == [1]
    owed = scene.index.find_marked("demo")
    assert sorted(row.sequence for row in owed or ()) == [2, 4]
    assert scene.index.find_marked("guest") is None
    await asyncio.sleep(0.1)
    assert scene.index.find_marked("guest") == []
    scene.kube.remove(KIND, "task-2")
    await asyncio.sleep(0.1)
    assert [row.sequence for row in scene.index.find_marked("demo") or ()] == [4]


@on_scene
async def test_made_and_removed_tasks_are_told_to_their_account_alone(scene: Scene) -> None:
    await scene.read()
    await asyncio.sleep(0.1)
    scene.told.clear()
    scene.put(5, account="guest")
    await asyncio.sleep(0.1)
    assert scene.told == []
    scene.put(4)
    scene.kube.remove(KIND, "task-2")
    await asyncio.sleep(0.1)
    assert scene.told == ["demo", "demo"]
    assert await scene.read() == [4, 3, 1]


@on_scene
async def test_removed_tasks_take_no_memory(scene: Scene) -> None:
    await scene.read()
    for number in range(10, 60):
        for _ in range(6):
            scene.put(number)
            scene.kube.remove(KIND, f"task-{number}")
        await asyncio.sleep(0.01)
    assert await scene.read() == [3, 2, 1]
    kept = scene.index._kept["demo"]
    assert len(kept.rows) < 200
    assert not kept.informer._tombstones


@on_scene
async def test_page_does_not_wait_for_a_slow_list(scene: Scene) -> None:
    scene.kube.away = True
    assert await scene.read() is None
    assert not scene.index.is_new("demo")
    scene.kube.away = False
    await asyncio.sleep(1)
    assert scene.told == ["demo"]
    assert scene.index.is_new("demo")
    assert await asyncio.gather(scene.read(), scene.read()) == [[3, 2, 1]] * 2
    await asyncio.sleep(NEW_SECONDS)
    assert not scene.index.is_new("demo")


@on_scene
async def test_silent_watch_is_unavailable_and_not_shown_as_it_was(scene: Scene) -> None:
    await scene.read()
    scene.kube.away = True
    await asyncio.sleep(60)
    with pytest.raises(Unavailable):
        await scene.read()
    scene.kube.away = False
    await asyncio.sleep(15)
    assert await scene.read() == [3, 2, 1]


@on_scene
async def test_account_is_followed_until_some_minutes_after_its_last_page(scene: Scene) -> None:
    await scene.read()
    await asyncio.sleep(LIFE_SECONDS - 60)
    await scene.read()
    await asyncio.sleep(LIFE_SECONDS - 60)
    assert scene.index._kept
    await asyncio.sleep(120)
    assert not scene.index._kept
    assert await scene.read() == [3, 2, 1]
    assert scene.count_lists() == 2


@on_scene
async def test_accounts_beyond_the_bounds_are_forgotten(scene: Scene) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_index, "MOST_ROWS", 3)
        await scene.read()
        await scene.read(account="guest")
        assert [*scene.index._kept] == ["guest"]


@on_scene
async def test_account_beyond_its_bound_is_listed_once_and_evicts_no_other(scene: Scene) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_index, "MOST_OF_ACCOUNT", 2)
        patch.setattr(row_index, "MOST_ROWS", 4)
        scene.kube.away = True
        assert await scene.read() is None
        assert await scene.read(account="guest") is None
        scene.kube.away = False
        await asyncio.sleep(30)
        assert sorted(scene.told) == ["demo", "guest"]
        lists = scene.count_lists()
        for _ in range(3):
            with pytest.raises(Unavailable, match="more than 2 tasks"):
                await scene.read()
            assert scene.index.find_marked("demo") is None
            assert await scene.read(account="guest") == [9]
        assert scene.count_lists() == lists
        assert [*scene.index._kept] == ["guest"]
        scene.kube.remove(KIND, "task-3")
        await asyncio.sleep(LIFE_SECONDS + 60)
        assert await scene.read() == [2, 1]


@on_scene
async def test_account_that_grows_evicts_others_and_not_itself(scene: Scene) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_index, "MOST_ROWS", 4)
        await scene.read()
        await scene.read(account="guest")
        scene.put(4)
        await asyncio.sleep(0.1)
        assert [*scene.index._kept] == ["demo"]
        assert await scene.read() == [4, 3, 2, 1]
        assert scene.count_lists() == 2


@on_scene
async def test_first_list_that_does_not_come_on_is_unavailable(scene: Scene) -> None:
    scene.kube.away = True
    assert await scene.read() is None
    # each read waits for a second
    await asyncio.sleep(7)
    assert await scene.read() is None
    await asyncio.sleep(2)
    with pytest.raises(Unavailable):
        await scene.read()
    scene.kube.away = False
    await asyncio.sleep(30)
    assert await scene.read() == [3, 2, 1]


@on_scene
async def test_many_tasks_are_paged_once_each(scene: Scene) -> None:
    numbers = range(10, 1_010)
    for number in numbers:
        scene.put(number, phase="Failed" if number % 100 == 0 else "Running")
    assert await scene.read(limit=1) == [1_009]
    found: list[int] = []
    scene.more = ""
    while page := await scene.read(scene.more, limit=20):
        found += page
        if not scene.more:
            break
    assert found == [*numbers[::-1], 3, 2, 1]
    assert await scene.read(phase="Failed", limit=20) == [*range(1_000, 0, -100)]


def test_names_that_a_day_has_dropped_are_kept_for_some_versions() -> None:
    def make(version: int) -> DayRow:
        pending = [{"name": f"task-{version}", "uid": str(version)}]
        meta = {"name": "demo-2026-11-24", "uid": "d", "creationTimestamp": CREATED}
        row = project_day_row(
            {
                "metadata": {**meta, "resourceVersion": str(version)},
                "spec": {"accountName": "demo", "day": "2026-11-24"},
                "status": {"pending": pending},
            }
        )
        assert row is not None
        return row

    row = make(0)
    for version in range(1, 100):
        row = make(version).follow(row)
    assert row.known is not None
    assert row.known.added == {str(version) for version in range(99 - MOST_DROPS, 100)}
