"""The index of tasks behind the console's lists: complete, bounded, and listed once."""

import asyncio
from typing import Any

import pytest

from gateway_apiserver.surfaces.console import task_index
from gateway_apiserver.surfaces.console.task_index import LIFE_SECONDS, TaskIndex
from gateway_core.kube.lists import Position
from gateway_core.tasks.finder import TaskRecord


def at(second: int) -> Position:
    return f"2026-11-24T03:00:{second:02}Z", second, f"task-{second}"


class Scene:
    """A table of open tasks, and a record that counts how often it is listed."""

    def __init__(self) -> None:
        self.record: dict[str, list[Position]] = {"demo": [at(1), at(3), at(2)], "guest": [at(9)]}
        self.entries: dict[str, TaskRecord] = {}
        self.lists = 0
        self.now = 0.0
        self.staleness = 0.0
        self.during = lambda: None
        self.index = TaskIndex(self, self, clock=lambda: self.now)  # type: ignore[arg-type]

    async def list_positions(self, kind: Any, account: str) -> list[Position]:
        self.lists += 1
        found = [*self.record[account]]
        await asyncio.sleep(0)
        self.during()
        return found

    def get(self, name: str) -> TaskRecord | None:
        return self.entries.get(name)

    def subscribe(self, listener: Any) -> None:
        self.tell = listener

    def make(self, second: int, account: str = "demo") -> None:
        position = at(second)
        self.entries[position[2]] = TaskRecord(account, "sim", "x", False, None, position)
        self.tell(position[2])

    async def read(self, before: Position | None = None, limit: int = 10) -> list[int]:
        return [each[1] for each in await self.index.list_before("demo", before, limit)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_tasks_come_newest_first_in_pages(scene: Scene) -> None:
    assert await scene.read(limit=2) == [3, 2]
    assert await scene.read(at(2)) == [1]
    assert await scene.read(at(1)) == []
    assert scene.lists == 1


async def test_task_made_later_is_there_once_though_it_settles(scene: Scene) -> None:
    await scene.read()
    scene.make(4)
    scene.make(4)
    scene.make(5, "guest")
    del scene.entries["task-4"]
    scene.tell("task-4")
    assert await scene.read() == [4, 3, 2, 1]


async def test_task_made_during_the_list_is_there(scene: Scene) -> None:
    scene.during = lambda: scene.make(4)
    assert await scene.read() == [4, 3, 2, 1]


async def test_pages_at_once_list_once(scene: Scene) -> None:
    assert await asyncio.gather(scene.read(), scene.read()) == [[3, 2, 1], [3, 2, 1]]
    assert scene.lists == 1


async def test_dropped_tasks_are_gone(scene: Scene) -> None:
    await scene.read()
    scene.index.drop("demo", {at(2)})
    assert await scene.read() == [3, 1]


async def test_account_is_listed_again_after_a_time_or_a_silent_watch(scene: Scene) -> None:
    await scene.read()
    scene.now = LIFE_SECONDS
    await scene.read()
    assert scene.lists == 2
    scene.staleness = 60
    await scene.read()
    assert scene.lists == 3


async def test_accounts_beyond_the_bounds_are_forgotten(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_index, "MOST_POSITIONS", 3)
    await scene.read()
    await scene.index.list_before("guest", None, 1)
    await scene.read()
    assert scene.lists == 3
