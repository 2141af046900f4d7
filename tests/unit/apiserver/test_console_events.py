"""Event streams of the console: what wakes them, what they cost, and who may have how many."""

import asyncio

import pytest

from gateway_apiserver.surfaces.console import live
from gateway_apiserver.surfaces.console.live import (
    OPENING_SECONDS,
    PER_PROCESS,
    PER_USER,
    AccountEvents,
)
from gateway_apiserver.surfaces.console.seats import CONSOLE_ALLOWANCES
from gateway_core.accounts.throttle import Allowance
from gateway_core.tasks.finder import TaskRecord
from tests.unit.apiserver.browsing import AppBrowser, enter, put_person
from tests.unit.apiserver.gateway import Gateway, call


class Table:
    """A table of tasks that counts how often it is scanned."""

    def __init__(self) -> None:
        self.entries: dict[str, TaskRecord] = {}
        self.scans = 0

    def get(self, name: str) -> TaskRecord | None:
        return self.entries.get(name)

    def items(self):
        self.scans += 1
        return self.entries.items()

    def subscribe(self, listener) -> None:
        self._tell = listener

    def put(self, name: str, account: str, terminal: bytes | None = None) -> None:
        self.entries[name] = TaskRecord(account, "sim", "image", False, terminal)
        self._tell(name)

    def remove(self, name: str) -> None:
        del self.entries[name]
        self._tell(name)


def test_stream_is_woken_by_tasks_of_its_account_from_begin_to_end() -> None:
    table = Table()
    events = AccountEvents(table, lambda task: task.account)
    table.put("early", "demo")
    ours, theirs = events.open("demo"), events.open("guest")
    for change in (
        lambda: table.put("a", "demo"),
        lambda: table.put("a", "demo"),
        lambda: table.remove("a"),
        lambda: table.remove("early"),
        lambda: table.put("b", "demo", b"{}"),
        lambda: table.remove("b"),
    ):
        change()
        assert ours.is_set()
        assert not theirs.is_set()
        ours.clear()


def test_opening_streams_scans_no_table_and_settled_tasks_take_no_memory() -> None:
    table = Table()
    events = AccountEvents(table, lambda task: task.account)
    scans = table.scans
    for n in range(100):
        table.put(f"t{n}", "demo")
        events.close(f"a{n}", events.open(f"a{n}"))
    assert table.scans == scans
    for n in range(100):
        table.remove(f"t{n}")
    assert not events._account_of


def test_stream_opened_after_a_change_begins_with_it_for_half_a_minute() -> None:
    table, now = Table(), 0.0
    events = AccountEvents(table, lambda task: task.account, clock=lambda: now)
    table.put("a", "demo")
    now = OPENING_SECONDS
    assert events.open("demo").is_set()
    assert not events.open("guest").is_set()
    now += 1
    assert not events.open("demo").is_set()
    assert not events._changed_at


def test_account_leaves_streams_to_others() -> None:
    routes = live.LiveRoutes(None, None, lambda: False)
    while routes._of_accounts.has_room("demo"):
        routes._of_accounts.acquire_nowait("demo")
    assert routes._of_accounts.held <= PER_PROCESS // 2 + 1
    assert routes._of_accounts.has_room("guest")


async def open_stream(
    gateway: Gateway, browser: AppBrowser, *, leaves: bool = True, method: str = "GET"
) -> int:
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    path = "/console/demo/events/tasks"
    headers = [("cookie", cookies)]
    answer = await call(gateway.app, method, path, headers=headers, breaks_off=leaves)
    return answer.status


@pytest.fixture
async def browser(gateway: Gateway) -> AppBrowser:
    put_person(gateway, "ann", demo="member")
    return await enter(gateway, "ann")


async def test_streams_that_are_opened_in_a_loop_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert CONSOLE_ALLOWANCES["console"] == Allowance(600, 60, optional=True)
    monkeypatch.setitem(CONSOLE_ALLOWANCES, "console", Allowance(3, 60, optional=True))
    gateway = Gateway()
    put_person(gateway, "ann", demo="member")
    browser = await enter(gateway, "ann")
    statuses = [await open_stream(gateway, browser) for _ in range(5)]
    assert statuses == [200] * 3 + [429] * 2


async def test_streams_of_one_user_are_bounded_over_sessions(
    gateway: Gateway, browser: AppBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.01)
    opened = [
        asyncio.create_task(open_stream(gateway, browser, leaves=False)) for _ in range(PER_USER)
    ]
    assert not (await asyncio.wait(opened, timeout=0.2))[0]
    second = await enter(gateway, "ann")
    assert await open_stream(gateway, second) == 429
    put_person(gateway, "bob", demo="member")
    assert await open_stream(gateway, await enter(gateway, "bob")) == 200
    for task in opened:
        task.cancel()
    await asyncio.gather(*opened, return_exceptions=True)
    assert await open_stream(gateway, second) == 200


async def test_head_of_a_stream_is_answered_at_once(gateway: Gateway, browser: AppBrowser) -> None:
    async with asyncio.timeout(5):
        assert await open_stream(gateway, browser, leaves=False, method="HEAD") == 200
