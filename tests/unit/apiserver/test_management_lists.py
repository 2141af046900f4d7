"""Lists of Platform Management: pages, cursors, order and filters (contract §3.4, §9)."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from gateway_core.billing.counters import BudgetState
from gateway_core.redis.link import CountersUnavailable
from tests.unit.apiserver.gateway import Gateway
from tests.unit.apiserver.management import Office

MINUTE = "2026-11-21T10:00:00Z"


@pytest.fixture
async def office() -> Office:
    """An account without any key but its management key; all is made in one second."""
    gateway = Gateway()
    gateway.kube.clock = lambda: MINUTE
    gateway.put_account("empty")
    office = Office(gateway)
    office.key = gateway.put_key("empty", "Management")
    return office


async def walk(office: Office, query: str) -> list[str]:
    """The ids of all pages, one after the other."""
    found: list[str] = []
    after = ""
    while True:
        page = await office.show("/keys", query + after)
        found += [key["id"] for key in page["data"]]
        if page["data"]:
            assert (page["first_id"], page["last_id"]) == (
                page["data"][0]["id"],
                page["data"][-1]["id"],
            )
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


async def test_default_page_has_twenty_newest_keys_and_empty_one_no_ids(office: Office) -> None:
    page = await office.show("/keys")
    assert page == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    made = [(await office.make())["id"] for _ in range(21)]
    page = await office.show("/keys")
    assert [key["id"] for key in page["data"]] == made[:0:-1]
    assert page["has_more"] is True
    page = await office.show("/keys", f"limit=5&after={made[10]}")
    assert [key["id"] for key in page["data"]] == made[9:4:-1]


async def test_pages_follow_creation_also_within_a_second(office: Office) -> None:
    made = [(await office.make(name=f"k{n}"))["id"] for n in range(7)]
    assert await walk(office, "limit=3&order=asc") == made
    assert await walk(office, "limit=2") == made[::-1]
    assert await walk(office, "limit=7&order=desc") == made[::-1]
    await office.ask("PATCH", f"/keys/{made[0]}", {"name": "changed"})
    assert await walk(office, "limit=100") == made[::-1]


async def test_filters_select_keys_by_status_and_name(office: Office) -> None:
    states: dict[str, dict[str, Any]] = {
        "active": {},
        "disabled": {"disabled": True},
        "expired": {"expires_at": "2020-01-01T00:00:00Z"},
        "revoked": {},
    }
    made = {}
    for state, fields in states.items():
        made[state] = (await office.make(name=f"Build {state}", **fields))["id"]
    await office.ask("DELETE", f"/keys/{made['revoked']}")
    for state, wire_id in made.items():
        assert await walk(office, f"status={state}") == [wire_id]
    assert await walk(office, "name_contains=bUILD%20D") == [made["disabled"]]
    assert await walk(office, "name_contains=bUILD%20D&status=active") == []
    assert len(await walk(office, "name_contains=")) == 4


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=1.5", "limit"),
        ("limit=", "limit"),
        ("limit=1&limit=2", "limit"),
        ("order=up", "order"),
        ("status=gone", "status"),
        ("status=", "status"),
        ("name_contains=" + "x" * 101, "name_contains"),
        ("states=active", "states"),
        ("purpose=", "purpose"),
    ],
)
async def test_bad_queries_are_400(office: Office, query: str, name: str) -> None:
    answer = await office.ask("GET", "/keys", query=query)
    assert answer.status == 400
    assert list(answer.json["errors"]) == [name]


@pytest.mark.parametrize("cursor", ["x", "", "key_" + "a" * 26, "key_nobody", "KEY", "key-named"])
async def test_unknown_cursor_is_404(office: Office, cursor: str) -> None:
    spec = {"accountName": "empty", "class": "Standard", "displayName": "d", "secretName": "s"}
    office.gateway.kube.put("gatewaykeys", {"metadata": {"name": "key-named"}, "spec": spec})
    assert (await office.ask("GET", "/keys", query="after=key_named")).status == 200
    answer = await office.ask("GET", "/keys", query=f"after={cursor}")
    assert (answer.status, answer.json) == (404, {"error": "Key not found."})


async def test_keys_of_other_replicas_are_listed_at_once(office: Office) -> None:
    """The record is read, whatever this replica's tables know."""
    made = await office.make()
    office.gateway.keys.forget(made["id"].replace("_", "-", 1))
    assert await walk(office, "") == [made["id"]]


async def test_budgets_are_read_once_for_a_page(office: Office) -> None:
    made = [await office.make(limit_cents=100, limit_window="1d") for _ in range(3)]
    asked = []

    async def read_budgets(account: str, budgets: Any) -> list[BudgetState]:
        asked.append(account)
        return [BudgetState(budget, 250_000, 0, 1_800_000_000) for budget in budgets]

    office.gateway.counters.read_budgets = read_budgets  # type: ignore[method-assign]
    page = await office.show("/keys", "limit=2")
    assert asked == ["empty"]
    assert [key["remaining_cents"] for key in page["data"]] == [75, 75]
    assert len(made) == 3


async def test_without_counters_budget_comes_from_status(office: Office) -> None:
    made = await office.make(limit_cents=100, limit_window="1d")
    path = f"/keys/{made['id']}"

    async def read_budgets(*_: Any) -> Any:
        raise CountersUnavailable("away")

    office.gateway.counters.read_budgets = read_budgets  # type: ignore[method-assign]
    shown = await office.show(path)
    assert (shown["used_cents"], shown["remaining_cents"], shown["reset_at"]) == (None, None, None)
    status = {
        "usedMicros": 400_000,
        "resetTime": "2026-11-22T10:00:00.5Z",
        "lastUsedTime": "2026-11-21T10:00:00+00:00",
    }
    office.gateway.kube.put("gatewaykeys", {**office.read(made["id"]), "status": status})
    shown = await office.show(path)
    assert (shown["used_cents"], shown["remaining_cents"]) == (40, 60)
    assert shown["reset_at"] == "2026-11-22T10:00:00Z"
    assert shown["last_used_at"] == "2026-11-21T10:00:00Z"


async def test_lost_counters_are_rebuilt_before_budget_is_shown(office: Office) -> None:
    made = await office.make(limit_cents=100, limit_window="1d")
    office.gateway.counters.lose()
    assert (await office.show(f"/keys/{made['id']}"))["used_cents"] == 0


async def test_lists_run_one_per_account_and_four_per_process(gateway: Gateway) -> None:
    keys = [gateway.put_key("demo", "Management")]
    for n in range(9):
        gateway.put_account(f"other-{n}")
        keys.append(gateway.put_key(f"other-{n}", "Management"))
    office, list_page = Office(gateway), gateway.kube.list_page
    running = Counter[str]()
    most: dict[str, int] = {}

    async def watch_list(plural: str, **options: Any) -> Any:
        if plural not in ("gatewaykeys", "gatewayguardrails"):
            return await list_page(plural, **options)
        account = options["field_selector"].split(",")[0]
        running.update((account, "all"))
        for name in (account, "all"):
            most[name] = max(most.get(name, 0), running[name])
        await asyncio.sleep(0)
        page = await list_page(plural, **options)
        running.subtract((account, "all"))
        return page

    gateway.kube.list_page = watch_list  # type: ignore[method-assign]
    calls = [
        office.ask("GET", path, key=key) for path in ("/keys", "/guardrails") * 3 for key in keys
    ]
    answers = await asyncio.gather(*calls)
    assert {answer.status for answer in answers} == {200}
    assert most.pop("all") == 4
    assert set(most.values()) == {1}
