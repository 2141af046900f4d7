"""Guardrails and their keys by REST (contract §9): one name each, all keys or none."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from gateway_core.api.ids import UNCHECKED_ANNOTATION
from gateway_core.billing.counters import BudgetState
from gateway_core.kube.client import WatchEvent
from gateway_core.kube.errors import WriteOutcomeUnknown
from gateway_core.kube.repository import ListLimiter
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import Gateway, call
from tests.unit.apiserver.management import Office

WHOLE: dict[str, Any] = {
    "name": "pool",
    "description": "for the build servers",
    "limit_cents": 1000,
    "limit_window": "monthly",
    "rpm_limit": 10,
    "cache_seconds": 60,
    "allowed_models": ["a*"],
    "denied_models": ["ab"],
    "allowed_providers": [],
    "denied_providers": ["sim"],
}
FIELDS = {
    *WHOLE,
    *("id", "object", "created_at", "updated_at", "used_cents", "remaining_cents", "reset_at"),
    "assigned_key_count",
}


@pytest.fixture
async def office(gateway: Gateway) -> Office:
    return Office(gateway)


async def assign(office: Office, guardrail: Any, *keys: Any, **options: Any) -> Any:
    body = {"key_ids": [key["id"] for key in keys]}
    return await office.ask("POST", f"/guardrails/{guardrail['id']}/assignments", body, **options)


async def names(office: Office, guardrail: Any) -> list[str]:
    return office.read(guardrail["id"])["spec"].get("keyNames") or []


async def test_guardrail_is_created_shown_and_changed(office: Office) -> None:
    made = await office.make("/guardrails", **WHOLE)
    assert set(made) == FIELDS
    assert {name: made[name] for name in WHOLE} == WHOLE
    assert (made["object"], made["assigned_key_count"], made["used_cents"]) == ("guardrail", 0, 0)
    path = f"/guardrails/{made['id']}"
    # the counters of the tests have a clock of their own
    shown = await office.show(path)
    assert {**shown, "reset_at": made["reset_at"]} == made
    nulls = ("description", "limit_cents", "cache_seconds", "allowed_models")
    patch = {**dict.fromkeys(nulls), "name": "renamed"}
    changed = (await office.ask("PATCH", path, patch)).json
    assert set(changed) == FIELDS - {"cache_seconds"}
    assert (changed["name"], changed["description"], changed["limit_window"]) == (
        "renamed",
        None,
        None,
    )
    assert (changed["allowed_models"], changed["denied_models"]) == (None, ["ab"])
    assert await office.show(path) == changed


@pytest.mark.parametrize("window", ["limit_cents", "limit_window"])
async def test_limit_needs_amount_and_window(office: Office, window: str) -> None:
    body = {name: value for name, value in WHOLE.items() if name != window}
    answer = await office.ask("POST", "/guardrails", body)
    assert answer.status == 400
    assert list(answer.json["errors"]) == [window]


async def test_lists_that_name_nothing_are_warned_of(office: Office) -> None:
    body = {"name": "g", "denied_models": ["nosuch"], "denied_providers": ["nowhere"]}
    answer = await office.ask("POST", "/guardrails", body)
    assert answer.headers["warning"] == (
        '299 - "denied_models: nosuch is not a model of this gateway;'
        ' denied_providers: nowhere is not a service of this gateway"'
    )
    changes = {"denied_models": None, "denied_providers": ["sim"]}
    changed = await office.ask("PATCH", f"/guardrails/{answer.json['id']}", changes)
    assert (changed.status, "warning" in changed.headers) == (200, False)


async def test_name_is_unique_in_account(office: Office) -> None:
    await office.make("/guardrails", name="pool")
    other = await office.make("/guardrails", name="other")
    assert (await office.ask("POST", "/guardrails", {"name": "pool"})).status == 409
    renamed = await office.ask("PATCH", f"/guardrails/{other['id']}", {"name": "pool"})
    assert renamed.status == 409
    assert (await office.show(f"/guardrails/{other['id']}"))["name"] == "other"
    same = await office.ask("PATCH", f"/guardrails/{other['id']}", {"name": "other"})
    assert same.status == 200
    await office.make("/guardrails", name="pool", key=office.other_key)


def slow_lists(office: Office, patch: pytest.MonkeyPatch) -> None:
    """Has each list take long enough for others to write after it, as other processes do."""
    patch.setattr(ListLimiter, "take", lambda *_: nullcontext())
    kube = office.gateway.kube
    list_page = kube.list_page

    async def list_slowly(*args: Any, **options: Any) -> Any:
        page = await list_page(*args, **options)
        for _ in range(20):
            await asyncio.sleep(0)
        return page

    patch.setattr(kube, "list_page", list_slowly)


def start_operator(office: Office) -> None:
    """Has somebody write the status of every guardrail as soon as it is there."""
    kube = office.gateway.kube
    running = set()

    def note(change: WatchEvent) -> None:
        if change.type == "ADDED":
            status = {"conditions": [{"type": "Ready", "status": "True"}]}
            writing = kube.patch_status("gatewayguardrails", change.object, status)
            task = asyncio.ensure_future(writing)
            running.add(task)
            task.add_done_callback(running.discard)

    kube.listen("gatewayguardrails", note)


async def test_concurrent_creates_of_one_name_make_one(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_lists(office, monkeypatch)
    start_operator(office)
    calls = [
        office.ask("POST", "/guardrails", {"name": "pool"}, idempotency_key=f"k{n}")
        for n in range(10)
    ]
    statuses = [answer.status for answer in await asyncio.gather(*calls)]
    assert sorted(statuses) == [201] + [409] * 9
    assert office.count("gatewayguardrails") == 1
    made = statuses.index(201)
    for n in (made, (made + 1) % 10):
        again = await office.ask("POST", "/guardrails", {"name": "pool"}, idempotency_key=f"k{n}")
        assert again.status == statuses[n]


async def test_interrupted_refusal_is_completed_by_repetition(
    office: Office,
) -> None:
    kube = office.gateway.kube
    made = await office.ask("POST", "/guardrails", {"name": "pool"}, idempotency_key="a")
    obj = office.read(made.json["id"])
    unchecked = {UNCHECKED_ANNOTATION: "true", **obj["metadata"]["annotations"]}
    kube.put(
        "gatewayguardrails",
        {**obj, "metadata": {**obj["metadata"], "annotations": unchecked, "finalizers": []}},
    )
    kube.put(
        "gatewayguardrails",
        {"metadata": {"name": "grd-x"}, "spec": {"accountName": "demo", "displayName": "pool"}},
    )
    again = await office.ask("POST", "/guardrails", {"name": "pool"}, idempotency_key="a")
    assert again.status == 409
    assert [g["metadata"]["name"] for g in kube.list_objects("gatewayguardrails")] == ["grd-x"]


async def test_unchecked_guardrail_with_keys_is_kept(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await office.make()
    slow_lists(office, monkeypatch)
    kube = office.gateway.kube

    def use(change: WatchEvent) -> None:
        if change.type == "ADDED" and len(kube.list_objects("gatewayguardrails")) == 2:
            spec = {**change.object["spec"], "keyNames": [key["id"].replace("_", "-", 1)]}
            kube.put("gatewayguardrails", {**change.object, "spec": spec})

    kube.listen("gatewayguardrails", use)
    calls = [office.ask("POST", "/guardrails", {"name": "pool"}) for _ in range(2)]
    answers = await asyncio.gather(*calls)
    assert [answer.status for answer in answers] == [201, 201]
    assert office.count("gatewayguardrails") == 2


async def test_concurrent_renames_to_one_name_let_one_win(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await office.make("/guardrails", name=f"n{n}") for n in range(5)]
    slow_lists(office, monkeypatch)
    calls = [
        office.ask("PATCH", f"/guardrails/{guardrail['id']}", {"name": "pool"})
        for guardrail in made
    ]
    statuses = sorted([answer.status for answer in await asyncio.gather(*calls)])
    assert statuses == [200] + [409] * 4
    shown = (await office.show("/guardrails"))["data"]
    assert sum(guardrail["name"] == "pool" for guardrail in shown) == 1


async def test_keys_are_assigned_listed_and_removed(office: Office) -> None:
    keys = [await office.make(name=f"k{n}") for n in range(3)]
    pool = await office.make("/guardrails", name="pool")
    path = f"/guardrails/{pool['id']}"
    for _ in range(2):
        answer = await assign(office, pool, *keys[:2])
        assert (answer.status, answer.json) == (200, {"assigned_count": 2})
    await assign(office, pool, keys[2])
    listed = await office.show(path + "/assignments", "order=asc&limit=2")
    assert [item["key_id"] for item in listed["data"]] == [key["id"] for key in keys[:2]]
    assert listed["data"][0] == {
        "object": "guardrail_assignment",
        "key_id": keys[0]["id"],
        "key_name": "k0",
        "key_status": "active",
    }
    assert (listed["has_more"], listed["last_id"]) == (True, keys[1]["id"])
    assert (await office.show(path))["assigned_key_count"] == 3
    assert (await office.show(f"/keys/{keys[0]['id']}"))["guardrail_ids"] == [pool["id"]]
    for _ in range(2):
        removed = await office.ask(
            "POST", path + "/assignments/remove", {"key_ids": [keys[0]["id"]]}
        )
        assert (removed.status, removed.json) == (200, {"unassigned_count": 1})
    assert (await office.show(path))["assigned_key_count"] == 2
    assert (await office.show(f"/keys/{keys[0]['id']}"))["guardrail_ids"] == []


@pytest.mark.parametrize("rest", ["", "/remove"])
async def test_assignment_takes_all_keys_or_none(office: Office, rest: str) -> None:
    mine = await office.make()
    theirs = await office.make(key=office.other_key)
    pool = await office.make("/guardrails", name="pool")
    await assign(office, pool, mine)
    before = await names(office, pool)
    path = f"/guardrails/{pool['id']}/assignments{rest}"
    bodies = set()
    unknown = [theirs["id"], "key_nobody", "key_" + "a" * 26, "nonsense", ""]
    for wire_id in (*unknown, "key_" + office.key[3:11]):
        answer = await office.ask("POST", path, {"key_ids": [mine["id"], wire_id]})
        assert answer.status == 404
        bodies.add(answer.body)
    assert len(bodies) == 1
    assert await names(office, pool) == before


@pytest.mark.parametrize("ids", [None, [], "key_x", ["a"] * 101, [5]])
async def test_bad_lists_of_keys_are_400(office: Office, ids: Any) -> None:
    pool = await office.make("/guardrails", name="pool")
    answer = await office.ask("POST", f"/guardrails/{pool['id']}/assignments", {"key_ids": ids})
    assert list(answer.json["errors"]) == ["key_ids"]


async def test_key_has_at_most_eight_guardrails(office: Office) -> None:
    key = await office.make()
    pools = [await office.make("/guardrails", name=f"p{n}") for n in range(9)]
    for pool in pools[:8]:
        assert (await assign(office, pool, key)).status == 200
    assert (await assign(office, pools[8], key)).status == 409
    assert (await assign(office, pools[0], key)).status == 200


async def test_concurrent_assignments_to_last_place_let_one_win(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, other = await office.make(), await office.make()
    pools = [await office.make("/guardrails", name=f"p{n}") for n in range(11)]
    for pool in pools[:7]:
        assert (await assign(office, pool, key)).status == 200
    await assign(office, pools[8], other)
    slow_lists(office, monkeypatch)
    start_operator(office)
    calls = [assign(office, pool, key, other, idempotency_key=pool["id"]) for pool in pools[7:]]
    answers = await asyncio.gather(*calls)
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]
    shown = await office.show(f"/keys/{key['id']}")
    assert len(shown["guardrail_ids"]) == 8
    name = other["id"].replace("_", "-", 1)
    for pool, answer in zip(pools[7:], answers, strict=True):
        was_there = pool is pools[8]
        assert (name in await names(office, pool)) is (answer.status == 200 or was_there)
        again = await assign(office, pool, key, other, idempotency_key=pool["id"])
        assert again.status == answer.status


async def test_assignment_limits_calls_at_once(office: Office) -> None:
    key = await office.make()
    pool = await office.make("/guardrails", name="pool", allowed_models=[])
    assert (await office.gateway.create(key=key["secret"])).status == 202
    await assign(office, pool, key)
    assert (await office.gateway.create(key=key["secret"])).status == 403
    await office.ask("DELETE", f"/guardrails/{pool['id']}", query="force=true")
    assert (await office.gateway.create(key=key["secret"])).status == 202


async def test_repeated_assignment_is_applied_once(office: Office) -> None:
    key = await office.make()
    pool = await office.make("/guardrails", name="pool")
    calls = [assign(office, pool, key, idempotency_key="a") for _ in range(4)]
    first, *others = sorted(
        await asyncio.gather(*calls), key=lambda answer: "idempotent-replayed" in answer.headers
    )
    assert {answer.body for answer in (first, *others)} == {b'{"assigned_count":1}'}
    assert ["idempotent-replayed" in answer.headers for answer in (first, *others)].count(True) == 3
    await office.ask(
        "POST", f"/guardrails/{pool['id']}/assignments/remove", {"key_ids": [key["id"]]}
    )
    again = await assign(office, pool, key, idempotency_key="a")
    assert (again.body, again.headers["idempotent-replayed"]) == (first.body, "true")
    assert await names(office, pool) == []
    other = await office.make()
    assert (await assign(office, pool, other, idempotency_key="a")).status == 409
    second = await office.make("/guardrails", name="second")
    assert (await assign(office, second, key, idempotency_key="a")).status == 409


@pytest.mark.parametrize("applied", [True, False])
async def test_assignment_with_lost_response_is_applied(office: Office, applied: bool) -> None:
    key = await office.make()
    pool = await office.make("/guardrails", name="pool")
    office.gateway.kube.order_faults("patch", Fault(WriteOutcomeUnknown("lost"), applied=applied))
    answer = await assign(office, pool, key, idempotency_key="a")
    assert (answer.status, "idempotent-replayed" in answer.headers) == (200, False)
    assert len(await names(office, pool)) == 1


async def test_guardrail_with_keys_is_deleted_only_with_force(office: Office) -> None:
    key = await office.make()
    pool = await office.make("/guardrails", name="pool")
    await assign(office, pool, key)
    path = f"/guardrails/{pool['id']}"
    for query in ("", "force=false"):
        assert (await office.ask("DELETE", path, query=query)).status == 409
    assert (await office.ask("DELETE", path, query="force=yes")).status == 400
    answer = await office.ask("DELETE", path, query="force=true")
    assert answer.json == {"id": pool["id"], "object": "guardrail", "deleted": True}
    assert (await office.ask("DELETE", path)).status == 404
    assert (await office.ask("GET", path)).status == 404
    await office.make("/guardrails", name="pool")


async def test_deleted_keys_do_not_prevent_deletion(office: Office) -> None:
    key = await office.make()
    pool = await office.make("/guardrails", name="pool")
    await assign(office, pool, key)
    office.gateway.kube.remove("gatewaykeys", key["id"].replace("_", "-", 1))
    assert (await office.show(f"/guardrails/{pool['id']}"))["assigned_key_count"] == 0
    assert (await office.ask("DELETE", f"/guardrails/{pool['id']}")).status == 200


async def test_repeated_create_of_deleted_guardrail_gets_same_response(
    office: Office,
) -> None:
    first = await office.ask("POST", "/guardrails", WHOLE, idempotency_key="a")
    path = f"/guardrails/{first.json['id']}"
    await office.ask("PATCH", path, {"name": "later"})
    for _ in range(2):
        again = await office.ask("POST", "/guardrails", WHOLE, idempotency_key="a")
        assert (again.status, again.body) == (201, first.body)
        assert again.headers["idempotent-replayed"] == "true"
        await office.ask("DELETE", path)
    assert office.count("gatewayguardrails") == 0
    other = await office.ask("POST", "/guardrails", {"name": "x"}, idempotency_key="a")
    assert other.status == 409


async def test_guardrail_that_waits_for_its_archive_is_gone(office: Office) -> None:
    pool = await office.make("/guardrails", name="pool")
    path = f"/guardrails/{pool['id']}"
    assert (await office.ask("DELETE", path)).status == 200
    assert office.read(pool["id"])["metadata"]["deletionTimestamp"]
    for method, body in (("GET", None), ("PATCH", {"name": "x"}), ("DELETE", None)):
        assert (await office.ask(method, path, body)).status == 404
    again = await office.make("/guardrails", name="pool")
    assert [one["id"] for one in (await office.show("/guardrails"))["data"]] == [again["id"]]


async def test_key_that_waits_for_its_archive_is_gone(office: Office) -> None:
    key = await office.make(name="one")
    app, sent = office.gateway.app, [("Authorization", f"Bearer {key['secret']}")]
    assert (await call(app, "GET", "/api/v1/me", headers=sent)).status == 200
    name = key["id"].replace("_", "-", 1)
    assert await office.gateway.kube.delete("gatewaykeys", name) is not None
    assert (await call(app, "GET", "/api/v1/me", headers=sent)).status == 401
    # also to a process whose watch is silent
    office.gateway.keys.staleness = 60.0
    assert (await call(app, "GET", "/api/v1/me", headers=sent)).status == 401
    assert (await office.ask("GET", f"/keys/{key['id']}")).status == 404
    assert key["id"] not in [one["id"] for one in (await office.show("/keys"))["data"]]


async def test_cursor_of_deleted_guardrail_works(office: Office) -> None:
    made = [await office.make("/guardrails", name=f"p{n}") for n in range(6)]
    seen: list[str] = []
    query = "limit=2&order=asc"
    while True:
        page = await office.show("/guardrails", query)
        seen += [guardrail["id"] for guardrail in page["data"]]
        for guardrail in page["data"]:
            await office.ask("DELETE", f"/guardrails/{guardrail['id']}")
        if not page["has_more"]:
            break
        query = f"limit=2&order=asc&after={page['last_id']}"
    assert seen == [guardrail["id"] for guardrail in made]
    foreign = await office.ask("GET", "/guardrails", query=f"after={seen[0]}", key=office.other_key)
    assert foreign.status == 404


async def test_used_cents_of_guardrail_are_shown(office: Office) -> None:
    pool = await office.make("/guardrails", **WHOLE)

    async def read_budgets(_: str, budgets: Any) -> list[BudgetState]:
        (budget,) = budgets
        assert budget.subject == "guardrail/" + pool["id"].replace("_", "-", 1)
        return [BudgetState(budget, used=1_239_999, held=10_000, reset=4_102_444_800)]

    office.gateway.counters.read_budgets = read_budgets  # type: ignore[method-assign]
    shown = await office.show(f"/guardrails/{pool['id']}")
    assert (shown["used_cents"], shown["remaining_cents"]) == (123, 875)
    assert shown["reset_at"] == "2100-01-01T00:00:00Z"


async def test_number_of_guardrails_of_account_is_bounded() -> None:
    office = Office(Gateway(guardrails_per_account=1))
    first = await office.make("/guardrails", name="first")
    assert (await office.ask("POST", "/guardrails", {"name": "second"})).status == 409
    await office.make("/guardrails", name="second", key=office.other_key)
    await office.ask("DELETE", f"/guardrails/{first['id']}")
    await office.make("/guardrails", name="second")
