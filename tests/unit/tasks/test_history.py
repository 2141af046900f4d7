"""`GET /api/v1/tasks` over archive and record: whole, in order, the account's own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.api.ids import id_to_name
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import Position
from gateway_core.tasks import history
from gateway_core.tasks.finder import TaskRecord
from gateway_core.tasks.history import TaskFilter, TaskHistory, read_mark, record_task, write_mark
from gateway_core.tasks.rows import TaskRow
from tests.unit.apiserver.gateway import COMPLETED, FAILED, MODEL, Answer, Gateway, body

LATER = "2999-01-01T00:00:00Z"
PAST = "2020-01-01T00:00:00Z"

seconds = st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2200, 1, 1)).map(
    lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%SZ")
)
names = st.from_regex(r"task-[a-z0-9-]{1,57}", fullmatch=True)
positions = st.tuples(seconds, st.integers(0, 10**20 - 1), names)


def row(position: Position, *, phase: str = "Completed", model: str = "m") -> TaskRow:
    return TaskRow(*position, None, "sim", "a", model, phase, LATER, 0, "", "", "")


@given(st.lists(positions, min_size=2, max_size=6, unique=True))
def test_keys_of_marks_list_the_newest_task_first(some: list[Position]) -> None:
    marks = sorted(write_mark(row(position), "demo") for position in some)
    found = [mark.position for key in marks if (mark := read_mark(key)) is not None]
    assert found == sorted(some, reverse=True)


async def list_tasks(gateway: Gateway, query: str = "", *, key: str | None = None) -> Answer:
    return await gateway.get("/api/v1/tasks", query=query, key=key)


async def walk(gateway: Gateway, query: str) -> list[list[str]]:
    """The ids of each page of a list, to its end."""
    pages, after = [], ""
    while True:
        answer = await list_tasks(gateway, f"{query}{after}")
        assert answer.status == 200, answer.body
        pages.append([task["id"] for task in answer.json["data"]])
        if not answer.json["has_more"]:
            return pages
        after = f"&after={answer.json['last_id']}"


async def make(gateway: Gateway, status: dict[str, Any] | None = None) -> str:
    """The id of a new task, ended if `status` says so."""
    task_id: str = (await gateway.create()).json["id"]
    if status is not None:
        gateway.end_task(task_id, {"work": "Settled", **status})
    return task_id


async def archive(gateway: Gateway, status: dict[str, Any]) -> str:
    """The id of a task that is in the archive alone."""
    task_id = await make(gateway, status)
    await record(gateway, task_id)
    gateway.kube.remove("gatewaytasks", id_to_name(task_id))
    return task_id


async def record(gateway: Gateway, task_id: str) -> None:
    await record_task(gateway.store, gateway.task_object(task_id))


async def test_task_is_shown_with_all_its_fields(gateway: Gateway) -> None:
    failed, running = await make(gateway, FAILED), await make(gateway)
    answer = await list_tasks(gateway)
    assert answer.status == 200
    first, second = answer.json["data"]
    assert list(first) == [
        "id", "service", "action", "model", "status", "created_at", "ended_at", "cost", "error",
    ]  # fmt: skip
    assert (first["id"], first["status"]) == (running, "processing")
    assert (first["ended_at"], first["cost"], first["error"]) == (None, None, None)
    assert (second["id"], second["status"]) == (failed, "failed")
    assert (second["ended_at"], second["cost"]) == (FAILED["completionTime"], 0)
    assert second["error"] == FAILED["failure"]["message"]
    assert (answer.json["has_more"], answer.json["last_id"]) == (False, failed)


async def test_pages_join_archive_and_record_with_each_task_once(gateway: Gateway) -> None:
    made = []
    for number in range(12):
        if number % 3 == 0:
            made.append(await archive(gateway, COMPLETED | {"completionTime": LATER}))
        else:
            made.append(await make(gateway, FAILED if number % 3 == 1 else None))
    # ended, archived, and its object is still there
    await record(gateway, made[1])
    assert await walk(gateway, "limit=5") == [made[:6:-1], made[6:1:-1], made[1::-1]]
    assert await walk(gateway, "limit=12") == [made[::-1]]
    assert await walk(gateway, "limit=2&status=completed") == [
        [made[9], made[6]],
        [made[3], made[0]],
    ]
    assert await walk(gateway, "status=failed") == [made[10::-3]]
    assert await walk(gateway, f"model={MODEL}") == [made[::-1]]
    assert await walk(gateway, "model=other") == [[]]


async def test_tasks_of_other_accounts_are_neither_shown_nor_cursors(gateway: Gateway) -> None:
    archived = await archive(gateway, COMPLETED)
    made = await make(gateway)
    assert (await list_tasks(gateway, key=gateway.other_key)).json == {
        "data": [],
        "has_more": False,
        "last_id": None,
    }
    unknown = await list_tasks(gateway, "after=task_unknown", key=gateway.other_key)
    assert unknown.status == 404
    for task_id in (archived, made):
        foreign = await list_tasks(gateway, f"after={task_id}", key=gateway.other_key)
        assert (foreign.status, foreign.body) == (404, unknown.body)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "status=done", "after=", "model=", "page=2"]
)
async def test_bad_query_names_its_parameter(gateway: Gateway, query: str) -> None:
    answer = await list_tasks(gateway, query)
    assert answer.status == 400
    assert list(answer.json["errors"]) == [query.partition("=")[0]]


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("-1", "must be at least 1"),
        ("0", "must be at least 1"),
        ("99999999999", "must be at most 100"),
        ("9" * 5000, "must be an integer"),
        ("1e1", "must be an integer"),
        ("--1", "must be an integer"),
    ],
)
async def test_limit_out_of_range_is_told_by_its_bound(
    gateway: Gateway, limit: str, text: str
) -> None:
    answer = await list_tasks(gateway, f"limit={limit}")
    assert (answer.status, answer.json["errors"]) == (400, {"limit": [text]})


async def test_task_whose_result_has_expired_is_not_listed(gateway: Gateway) -> None:
    await archive(gateway, {**COMPLETED, "completionTime": PAST})
    kept = await archive(gateway, {**COMPLETED, "completionTime": LATER})
    assert await walk(gateway, "limit=1") == [[kept]]


async def test_rare_status_ends_a_page_early_and_the_next_goes_on(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_MARKS", 2)
    late = {"completionTime": LATER}
    failed = [await archive(gateway, FAILED | late)]
    completed = [await archive(gateway, COMPLETED | late) for _ in range(4)]
    failed.append(await archive(gateway, FAILED | late))
    assert await walk(gateway, "status=failed") == [failed[1:], [], failed[:1], []]
    assert await walk(gateway, "status=completed&limit=3") == [
        completed[3:],
        completed[2:0:-1],
        completed[:1],
        [],
    ]


async def test_mark_without_an_archive_is_passed_over(gateway: Gateway) -> None:
    """A kill between the two leaves this."""
    task_id = await make(gateway, {**COMPLETED, "completionTime": LATER})
    await record(gateway, task_id)
    await gateway.store.delete(f"tasks/demo/{id_to_name(task_id)}.json")
    assert await walk(gateway, "") == [[task_id]]
    gateway.kube.remove("gatewaytasks", id_to_name(task_id))
    gateway.api_parts.tables.task_rows._kept.clear()
    assert await walk(gateway, "") == [[]]


async def test_task_that_is_removed_while_its_page_is_read_is_shown_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await make(gateway, {**COMPLETED, "completionTime": LATER}) for _ in range(3)]
    for task_id in made:
        await record(gateway, task_id)
    list_entries, rows = gateway.store.list_entries, gateway.api_parts.tables.task_rows

    async def remove_then_list(*given: Any, **named: Any) -> AsyncIterator[Any]:
        for task_id in made:
            gateway.kube.remove("gatewaytasks", id_to_name(task_id))
            while not rows.lacks("demo", id_to_name(task_id)):  # noqa: ASYNC110 - of an informer
                await asyncio.sleep(0)
        async for entry in list_entries(*given, **named):
            yield entry

    monkeypatch.setattr(gateway.store, "list_entries", remove_then_list)
    assert await walk(gateway, "") == [made[::-1]]


async def test_page_ends_at_a_task_that_is_still_there(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_MARKS", 1)
    made = [await archive(gateway, COMPLETED | {"completionTime": LATER}) for _ in range(4)]
    for task_id in made[1:3]:
        await gateway.store.delete(f"tasks/demo/{id_to_name(task_id)}.json")
    gateway.api_parts.tables.task_rows._kept.clear()
    pages = await walk(gateway, "status=completed")
    assert [task_id for page in pages for task_id in page] == [made[3], made[0]]
    assert await walk(gateway, "status=failed") == [[], [], []]


async def test_list_is_503_while_the_archive_cannot_be_read(gateway: Gateway) -> None:
    await make(gateway)
    gateway.store.away = True
    answer = await list_tasks(gateway)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_prompt_and_key_are_looked_for_in_record_and_archive(gateway: Gateway) -> None:
    parts = gateway.api_parts
    lists = TaskHistory(
        parts.tables.task_rows, parts.tables.open_tasks, gateway.kube, gateway.store
    )
    other = gateway.put_key("demo")
    cats = [await archive(gateway, {**COMPLETED, "completionTime": LATER}), await make(gateway)]
    dog = (await gateway.create(body(prompt="A DOG " + "x" * 9000), key=other)).json["id"]
    gateway.end_task(dog, {**COMPLETED, "completionTime": LATER})

    async def find(**wanted: Any) -> list[str]:
        page = await lists.read_page("demo", limit=9, wanted=TaskFilter(**wanted))
        return [row.task_id for row in page.rows]

    for is_archived in (False, True):
        if is_archived:
            await record(gateway, dog)
            gateway.kube.remove("gatewaytasks", id_to_name(dog))
            parts.tables.task_rows._kept.clear()
        assert await find(text="Cat") == cats[::-1]
        assert await find(text="a dog") == [dog]
        assert await find(text="a dog", status="failed") == []
        assert await find(text="bird") == []
        assert await find(key="key-" + other[3:11]) == [dog]
        assert await find(key="key-" + gateway.key[3:11]) == cats[::-1]


async def test_task_that_is_removed_before_its_prompt_is_read_is_found(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, kube = gateway.api_parts.tables, gateway.kube
    lists = TaskHistory(tables.task_rows, tables.open_tasks, kube, gateway.store)
    task_id = await make(gateway, {**COMPLETED, "completionTime": LATER})
    await record(gateway, task_id)
    get = kube.get

    async def remove_then_get(*given: Any, **named: Any) -> Any:
        kube.remove("gatewaytasks", id_to_name(task_id))
        return await get(*given, **named)

    monkeypatch.setattr(kube, "get", remove_then_get)
    page = await lists.read_page("demo", limit=9, wanted=TaskFilter(text="cat"))
    assert [row.task_id for row in page.rows] == [task_id]


class CountingTable:
    """A table of open tasks that counts the entries that its readers look at."""

    def __init__(self, table: Cache[TaskRecord]) -> None:
        self._table = table
        self.visits = 0

    def get(self, name: str) -> TaskRecord | None:
        self.visits += 1
        return self._table.get(name)

    def items(self) -> Iterator[tuple[str, TaskRecord]]:
        for entry in self._table.items():
            self.visits += 1
            yield entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


async def test_cost_of_a_page_follows_the_open_tasks_of_the_account(gateway: Gateway) -> None:
    tables = gateway.api_parts.tables
    counting: Any = CountingTable(tables.open_tasks)
    lists = TaskHistory(tables.task_rows, counting, gateway.kube, gateway.store)
    own = [await make(gateway) for _ in range(3)]
    for _ in range(40):
        assert (await gateway.create(key=gateway.other_key)).status == 202
    for _ in range(2):
        counting.visits = 0
        page = await lists.read_page("demo", limit=9, wanted=TaskFilter())
        assert [row.task_id for row in page.rows] == own[::-1]
        assert counting.visits <= len(own)


async def test_search_of_prompts_reads_a_part_of_the_tasks_at_a_time(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_READS", 2)
    parts = gateway.api_parts
    lists = TaskHistory(
        parts.tables.task_rows, parts.tables.open_tasks, gateway.kube, gateway.store
    )
    late = {**COMPLETED, "completionTime": LATER}
    wanted = [(await gateway.create(body(prompt="a dog"))).json["id"]]
    for number in range(5):
        await (archive(gateway, late) if number % 2 else make(gateway))
    wanted.append((await gateway.create(body(prompt="a dog"))).json["id"])
    found, after, pages = [], None, 0
    while pages == 0 or after is not None:
        page = await lists.read_page("demo", after=after, limit=9, wanted=TaskFilter(text="dog"))
        found += [row.task_id for row in page.rows]
        after, pages = page.last, pages + 1
    assert found == wanted[::-1]
    assert pages > 2
