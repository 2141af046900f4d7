"""Pages show what the process has in memory: without a call to the Kubernetes API, and current."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from gateway_core.api.ids import FILE_PREFIX, name_to_id
from tests.servers.browser import Page
from tests.servers.world import wait_for
from tests.unit.apiserver.browsing import AppBrowser, enter, put_person
from tests.unit.apiserver.gateway import COMPLETED, Gateway

HOME = "/console/demo"
PAGES = (
    "",
    "/tasks",
    "/batches",
    "/files",
    "/files?purpose=batch",
    "/keys",
    "/keys?status=active",
    "/guardrails",
    "/usage",
    "/usage/csv",
    "/members",
    "/audit",
)
USAGE = "gatewayusages"
LABEL = {"modelgateway.dev/account": "demo"}


@pytest.fixture
async def browser(gateway: Gateway) -> AppBrowser:
    put_person(gateway, "ann", demo="owner")
    return await enter(gateway, "ann")


def put_usage(
    gateway: Gateway,
    micros: int,
    *pending: dict[str, str],
    account: str = "demo",
    key: str = "key-a",
    **others: int,
) -> None:
    """Put today's usage of an account: what one key spent, and other ones."""
    today = datetime.now(UTC).date().isoformat()
    row = {"modelId": "m1", "operation": "sim/a", "requests": 1}
    spent = {key: micros, **others}
    rows = [{**row, "keyName": name, "chargedMicros": amount} for name, amount in spent.items()]
    metadata = {"name": f"{account}-{today}", "labels": {"modelgateway.dev/account": account}}
    spec = {"accountName": account, "day": today}
    status = {"rows": rows, "pending": [*pending]}
    gateway.kube.put(USAGE, {"metadata": metadata, "spec": spec, "status": status})


def put_ended(gateway: Gateway, micros: int, **labels: str) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    status = {**COMPLETED, "chargedMicros": micros, "completionTime": now}
    obj = gateway.put_task("task_a", keyName="key-a", status=status)
    metadata = {**obj["metadata"], "labels": {**LABEL, **labels}}
    return gateway.kube.put("gatewaytasks", {**obj, "metadata": metadata})


def put_file(gateway: Gateway, name: str, number: int) -> str:
    stored = gateway.mint.mint_ordered(FILE_PREFIX, "demo", 1_700_000_000_000 + number)
    request = {"accountName": "demo", "purpose": "user_data", "filename": name, "bytes": 1}
    request["segments"] = [{"key": f"files/{number}", "bytes": 1, "sha256": "0" * 64}]
    obj = {"metadata": {"name": stored}, "spec": {"request": request}}
    gateway.kube.put("gatewayfiles", obj)
    return stored


async def wait_seen(gateway: Gateway, plural: str = USAGE) -> None:
    """Wait until the rows of the account have the latest change of a kind."""
    latest = max(
        int(obj["metadata"]["resourceVersion"]) for obj in gateway.kube.list_objects(plural)
    )
    tables = gateway.api_parts.tables
    rows: Any = tables.day_rows if plural == USAGE else tables.task_rows
    assert await rows._kept["demo"].informer.wait_for_version(latest, 60)


def read_spent(page: Page) -> str:
    """The first row of the usage by key: what was spent."""
    return page.text.partition("By key")[2]


async def test_usage_names_the_person_of_calls_from_the_playground(
    gateway: Gateway, browser: AppBrowser
) -> None:
    put_person(gateway, "mia", demo="member")
    spent = {"session-ann": 3_000_000, "session-mia": 2_000_000, "session-gone": 1_000_000}
    put_usage(gateway, 5_000_000, **spent)
    text = (await browser.get(f"{HOME}/usage")).text.partition("By key")[2]
    for name in ("ann", "mia", "gone"):
        assert f"Playground ({name})" in text


async def test_page_calls_no_kubernetes_api(gateway: Gateway, browser: AppBrowser) -> None:
    put_usage(gateway, 5_000_000)
    put_ended(gateway, 700_000)
    gateway.put_guardrail("pool", gateway.key, limit={"window": "daily", "micros": 10_000_000})
    put_file(gateway, "report.pdf", 1)
    # the first page of an account has its rows listed
    await browser.get(f"{HOME}/batches")
    await browser.get(f"{HOME}/usage")
    gateway.kube.calls.clear()
    for path in PAGES:
        page = await browser.get(HOME + path)
        assert page.status == 200, path
        assert "being read" not in page.text, path
        assert [call for call in gateway.kube.calls if call[0] != "watch"] == [], path


async def test_usage_has_charge_of_a_task_that_has_just_ended(
    gateway: Gateway, browser: AppBrowser
) -> None:
    put_usage(gateway, 5_000_000)
    task = put_ended(gateway, 700_000)
    assert "$5.70" in read_spent(await browser.get(f"{HOME}/usage"))
    put_usage(gateway, 5_700_000, {"name": "task-a", "uid": task["metadata"]["uid"]})
    await wait_seen(gateway)
    assert "$5.70" in read_spent(await browser.get(f"{HOME}/usage"))
    put_ended(gateway, 700_000, **{"modelgateway.dev/folded": "x"})
    put_usage(gateway, 5_700_000)
    await wait_seen(gateway)
    assert "$5.70" in read_spent(await browser.get(f"{HOME}/usage"))


async def test_charge_counts_once_where_the_rows_of_tasks_are_behind_the_usage(
    gateway: Gateway, browser: AppBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_usage(gateway, 5_000_000)
    await browser.get(f"{HOME}/usage")
    task = put_ended(gateway, 700_000)
    await wait_seen(gateway, "gatewaytasks")
    rows = gateway.api_parts.tables.task_rows
    monkeypatch.setattr(rows._kept["demo"].informer, "_apply", lambda _: None)
    put_usage(gateway, 5_700_000, {"name": "task-a", "uid": task["metadata"]["uid"]})
    put_ended(gateway, 700_000, **{"modelgateway.dev/folded": "x"})
    gateway.kube.calls.clear()
    for micros in (5_700_000, 5_800_000, 5_900_000):
        put_usage(gateway, micros)
        await wait_seen(gateway)
        assert [row.name for row in rows.find_marked("demo") or ()] == ["task-a"]
        spent = f"${micros / 1_000_000:.2f}"
        assert spent in read_spent(await browser.get(f"{HOME}/usage"))
    assert [call for call in gateway.kube.calls if call[0] != "watch"] == []


async def test_charge_stays_where_the_rows_of_days_are_behind_the_tasks(
    gateway: Gateway, browser: AppBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_usage(gateway, 5_000_000)
    task = put_ended(gateway, 700_000)
    assert "$5.70" in read_spent(await browser.get(f"{HOME}/usage"))
    informer = gateway.api_parts.tables.day_rows._kept["demo"].informer
    with monkeypatch.context() as patched:
        patched.setattr(informer, "_apply", lambda _: None)
        put_usage(gateway, 5_700_000, {"name": "task-a", "uid": task["metadata"]["uid"]})
        put_ended(gateway, 700_000, **{"modelgateway.dev/folded": "x"})
        await wait_seen(gateway, "gatewaytasks")
        assert gateway.api_parts.tables.task_rows.find_marked("demo") == []
        assert "$5.70" in read_spent(await browser.get(f"{HOME}/usage"))
    put_usage(gateway, 5_700_000)
    await wait_seen(gateway)
    assert "$5.70" in read_spent(await browser.get(f"{HOME}/usage"))


async def test_day_that_came_and_was_archived_between_two_pages_is_shown(
    gateway: Gateway, browser: AppBrowser
) -> None:
    path = f"{HOME}/usage"
    await browser.get(path)
    assert "$5.00" not in read_spent(await browser.get(path))
    put_usage(gateway, 5_000_000)
    await wait_seen(gateway)
    (copied,) = gateway.kube.list_objects(USAGE)
    meta, today = copied["metadata"], copied["spec"]["day"]
    await gateway.store.put(f"usage/demo/{today}.{meta['uid']}.json", orjson.dumps(copied))
    rows = gateway.api_parts.tables.day_rows
    before = rows.find_epoch("demo")
    gateway.kube.remove(USAGE, meta["name"])
    await wait_for(lambda: rows.find_epoch("demo") != before, what="the removal")
    assert "$5.00" in read_spent(await browser.get(path))


async def test_usage_of_members_is_confined_though_pages_are_read_at_once(
    gateway: Gateway,
) -> None:
    put_person(gateway, "mia", demo="member")
    put_person(gateway, "ann", demo="owner")
    name = "key-" + gateway.put_key("demo", displayName="of mia", createdBy="mia")[3:11]
    put_usage(gateway, 1_000_000, key=name, **{"key-a": 5_000_000})
    put_usage(gateway, 90_000_000, account="guest")
    mia, ann = await enter(gateway, "mia"), await enter(gateway, "ann")
    await ann.get(f"{HOME}/usage")
    pages = (mia.get(f"{HOME}/usage"), ann.get(f"{HOME}/usage"), mia.get(HOME), ann.get(HOME))
    own, every, home, home_of_all = await asyncio.gather(*pages)
    assert "$1.00" in read_spent(own)
    assert "$6.00" in every.text
    assert "$1.00" in home.text
    assert "$6.00" in home_of_all.text
    for page in (own, home):
        assert not any(sum_ in page.text for sum_ in ("$5.00", "$6.00", "$9"))
    for page in (every, home_of_all):
        assert "$9" not in page.text


async def test_usage_is_read_of_the_record_where_rows_are_older_than_the_list_of_days(
    gateway: Gateway, browser: AppBrowser
) -> None:
    put_ended(gateway, 700_000)
    await browser.get(f"{HOME}/tasks")
    tables = gateway.api_parts.tables
    await tables.task_rows.wait_listed("demo")
    put_ended(gateway, 700_000, **{"modelgateway.dev/folded": "x"})
    put_usage(gateway, 5_700_000)
    # as if the watch of tasks were behind the first list of days
    informer = tables.task_rows._kept["demo"].informer
    informer._apply = lambda _: None  # type: ignore[method-assign]
    assert "$5.70" in read_spent(await browser.get(f"{HOME}/usage"))


async def test_day_of_very_many_lines_is_read_from_the_record(
    gateway: Gateway, browser: AppBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway_apiserver.surfaces.console.rows.MOST_LINES", 0)
    put_usage(gateway, 5_000_000)
    await browser.get(f"{HOME}/usage")
    (row,) = gateway.api_parts.tables.day_rows.find_marked("demo") or ()
    assert row.usage is None
    assert "$5.00" in read_spent(await browser.get(f"{HOME}/usage"))


@pytest.mark.usefixtures("hasty_pages")
@pytest.mark.parametrize("path", ["", "/usage"])
async def test_page_is_shown_before_archived_days_are_read_and_then_with_them(
    gateway: Gateway, browser: AppBrowser, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    put_usage(gateway, 5_000_000)
    await browser.get(f"{HOME}/batches")
    may_go, list_entries = asyncio.Event(), gateway.store.list_entries

    async def list_slowly(*args: Any, **options: Any) -> AsyncIterator[Any]:
        await may_go.wait()
        async for entry in list_entries(*args, **options):
            yield entry

    monkeypatch.setattr(gateway.store, "list_entries", list_slowly)
    page = await browser.get(HOME + path)
    assert "being read" in page.text
    assert f'sse-connect="{HOME}/events/tasks"' in page.body
    # what the event stream asks for, and a page that is loaded again
    region = {"HX-Request": "true", "HX-Target": "region"}
    later = [asyncio.create_task(browser.get(HOME + path, **more)) for more in (region, {})]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in later)
    may_go.set()
    for page in await asyncio.gather(*later):
        assert "$5.00" in page.text
        assert "being read" not in page.text


@pytest.mark.usefixtures("hasty_pages")
async def test_overview_takes_the_place_of_its_hint_once_tasks_are_listed(
    gateway: Gateway, browser: AppBrowser
) -> None:
    gateway.kube.away = True
    assert "being read" in (await browser.get(HOME)).text
    gateway.kube.away = False
    rows = gateway.api_parts.tables.task_rows
    await rows._kept["demo"].informer.wait_synced()
    page = await browser.get(HOME, **{"HX-Request": "true", "HX-Target": "region"})
    assert "Spent today" in page.text
    assert "Latest tasks" in page.text


async def test_member_sees_their_own_keys_alone(gateway: Gateway) -> None:
    put_person(gateway, "mia", demo="member")
    put_person(gateway, "ann", demo="owner")
    gateway.put_key("demo", displayName="of mia", createdBy="mia")
    gateway.put_key("demo", displayName="of ann", createdBy="ann", disabled=True)
    limit = {"window": "daily", "micros": 12_000_000}
    gateway.put_key("demo", displayName="gone", createdBy="ann", revoked=True, limit=limit)
    gateway.put_key("demo", "Management", displayName="declared")
    gateway.put_key("guest", displayName="foreign")
    own = await (await enter(gateway, "mia")).get(f"{HOME}/keys")
    assert "of mia" in own.text
    assert "of ann" not in own.text
    ann = await enter(gateway, "ann")
    page = await ann.get(f"{HOME}/keys")
    assert all(name in page.text for name in ("of mia", "of ann", "gone"))
    assert not any(name in page.text for name in ("declared", "foreign"))
    for status, name in (("disabled", "of ann"), ("revoked", "gone"), ("active", "of mia")):
        page = await ann.get(f"{HOME}/keys?status={status}&name_contains={name[-3:].upper()}")
        table = page.text.partition("Created by")[2]
        assert name in table, status
        assert sum(each in table for each in ("of mia", "of ann", "gone")) == 1
        assert ("$12.00" in table) == (status == "revoked")


async def test_keys_come_newest_first_in_pages(gateway: Gateway, browser: AppBrowser) -> None:
    for number in range(25):
        key = gateway.put_key("demo", displayName=f"number {number:02}.")
        name = f"key-{key[3:11]}"
        obj = await gateway.kube.get("gatewaykeys", name)
        meta = {**obj["metadata"], "annotations": {"modelgateway.dev/sequence": str(number + 1)}}
        gateway.kube.put("gatewaykeys", {**obj, "metadata": meta})
    found, path = list[int](), f"{HOME}/keys"
    for _ in range(2):
        page = await browser.get(path)
        found += [number for number in range(24, -1, -1) if f"number {number:02}." in page.text]
        at = page.body.find('rel="next"')
        begin = page.body.rfind('href="', 0, at) + len('href="')
        path = page.body[begin : page.body.index('"', begin)].replace("&amp;", "&")
    assert found == [*range(24, -1, -1)]
    assert at == -1
    assert (await browser.get(f"{HOME}/keys?after=malformed")).status == 400


async def test_deleted_guardrail_is_gone_before_its_event(
    gateway: Gateway, browser: AppBrowser
) -> None:
    gateway.put_guardrail("grd-pool", gateway.key)
    path = f"{HOME}/guardrails/grd_pool"
    page = await browser.get(path)
    gateway.guardrails.cut = True
    await browser.submit(page, f"{path}/delete")
    assert "Pool grd-pool" not in (await browser.get(f"{HOME}/guardrails")).text


async def test_lists_of_a_silent_watch_are_not_shown(gateway: Gateway, browser: AppBrowser) -> None:
    gateway.keys.staleness = gateway.guardrails.staleness = 60.0
    for noun in ("keys", "guardrails", "audit"):
        page = await browser.get(f"{HOME}/{noun}")
        assert page.status == 503, noun
        assert "cannot be read now" in page.text


async def test_files_are_shown_where_nothing_has_announced_a_version(
    gateway: Gateway, browser: AppBrowser
) -> None:
    put_file(gateway, "report.pdf", 1)
    assert await gateway.storage.read_version("demo") is None
    gateway.kube.calls.clear()
    assert "report.pdf" in (await browser.get(f"{HOME}/files")).text
    assert ("list_page", "gatewayfiles") not in gateway.kube.calls
    # before the first list of the informer, and while its watch is silent, the record is asked
    gateway.files.staleness = 60.0
    assert "report.pdf" in (await browser.get(f"{HOME}/files")).text
    assert ("list_page", "gatewayfiles") in gateway.kube.calls


WAITING = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "Succeeded",
            "status": "Unknown",
            "reason": "WaitingForProvider",
            "message": "provider sim: Secret hidden is missing; the task waits until …",
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        }
    ],
}


async def test_filter_of_tasks_offers_the_words_that_the_list_shows(
    browser: AppBrowser, gateway: Gateway
) -> None:
    states: list[dict[str, Any]] = [
        {},
        WAITING,
        {"phase": "Submitting"},
        {"phase": "Running"},
        {"phase": "Completed", "result": {"videos": []}},
        {"phase": "Failed", "failure": {"code": "x", "message": "No."}},
    ]
    for number, status in enumerate(states):
        gateway.put_task(f"task_{number}", status=status)
    await browser.get(f"{HOME}/tasks")
    await gateway.api_parts.tables.task_rows.wait_listed("demo")
    shown = {
        "pending": {"task_0", "task_1"},
        "submitting": {"task_2"},
        "running": {"task_3"},
        "completed": {"task_4"},
        "failed": {"task_5"},
    }
    for state, expected in shown.items():
        text = (await browser.get(f"{HOME}/tasks?status={state}")).text
        assert {f"task_{n}" for n in range(6) if f"Tasktask_{n}Model" in text} == expected
        assert text.count(f"State{state.capitalize()}Created") == len(expected)
    assert "StateAnyPendingSubmittingRunningCompletedFailed" in text.replace(" ", "")


async def test_pages_of_key_and_guardrail_tell_of_names_that_nothing_has(
    browser: AppBrowser, gateway: Gateway
) -> None:
    gateway.put_key("demo", allowedModels=["sim-*", "nosuch"])
    guardrail = {"accountName": "demo", "displayName": "g", "deniedProviders": ["nowhere"]}
    gateway.kube.put("gatewayguardrails", {"metadata": {"name": "grd-a"}, "spec": guardrail})
    name = next(
        obj["metadata"]["name"]
        for obj in gateway.kube.list_objects("gatewaykeys")
        if obj["spec"].get("allowedModels")
    )
    text = (await browser.get(f"{HOME}/keys/{name_to_id(name)}")).text
    assert "Allowed models: nosuch is not a model of this gateway." in text
    text = (await browser.get(f"{HOME}/guardrails/grd_a")).text
    assert "Denied providers: nowhere is not a service of this gateway." in text


async def test_waiting_task_says_for_what_without_names_of_secrets(
    browser: AppBrowser, gateway: Gateway
) -> None:
    gateway.put_task("task_w", status=WAITING)
    text = (await browser.get(f"{HOME}/tasks/task_w")).text
    assert "It waits for its provider, which does not take calls now, and fails at 20" in text
    assert "hidden" not in text


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (
            "/tasks?status=foo",
            "must be one of pending, submitting, running, completed, failed.",
        ),
        ("/tasks?model=a b", "Model must be the id of a model."),
        ("/keys?status=foo", "State must be one of active, disabled, expired, revoked."),
        ("/files?purpose=foo", "Purpose must be one of"),
        ("/usage?start=foo", "From must be a day"),
    ],
)
async def test_list_refuses_an_unknown_filter_and_names_it(
    browser: AppBrowser, path: str, problem: str
) -> None:
    page = await browser.get(HOME + path.replace(" ", "+"))
    assert page.status == 400
    assert problem in page.text


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "2026-13-01T00:00:00Z", "x"])
@pytest.mark.parametrize("page", ["/tasks", "/batches"])
async def test_cursor_that_no_page_wrote_is_refused(
    browser: AppBrowser, page: str, time: str
) -> None:
    answer = await browser.get(f"{HOME}{page}?after={time}~1~task-a")
    assert answer.status == 400
    assert "The address is malformed." in answer.text
    oldest = await browser.get(f"{HOME}{page}?after=0001-01-01T00:00:00Z~1~task-a")
    assert oldest.status == 200
