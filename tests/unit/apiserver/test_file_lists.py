"""Lists of files: pages, cursors, order and what is in none (contract §3.4)."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway_core.kube.client import Page
from gateway_core.kube.errors import KubernetesUnavailable
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.filing import FILES, Cabinet
from tests.unit.apiserver.gateway import Gateway


@pytest.fixture
def cabinet(gateway: Gateway) -> Cabinet:
    return Cabinet(gateway)


async def test_pages_follow_the_order_of_creation(cabinet: Cabinet) -> None:
    empty = (await cabinet.ask("GET", FILES, query="limit=10000&colour=red")).json
    assert empty == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    made = [(await cabinet.make())["id"] for _ in range(7)]
    assert await cabinet.list() == made[::-1]
    cabinet.gateway.kube.calls.clear()
    assert await cabinet.list() == made[::-1]
    assert cabinet.gateway.kube.calls == [], "the informer is current"
    assert await cabinet.list("order=asc") == made
    assert await cabinet.list("limit=3") == made[:3:-1]
    assert await cabinet.list(f"limit=3&after={made[4]}") == made[3:0:-1]
    assert await cabinet.list(f"order=asc&after={made[4]}") == made[5:]
    page = (await cabinet.ask("GET", FILES, query="limit=3")).json
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[6], made[4], True)
    page = (await cabinet.ask("GET", FILES, query="limit=7")).json
    assert page["has_more"] is False


async def test_deleting_what_is_listed_reaches_every_page(cabinet: Cabinet) -> None:
    made = [(await cabinet.make())["id"] for _ in range(5)]
    after, seen = "", list[str]()
    while page := await cabinet.list("limit=2" + after):
        for file_id in page:
            assert (await cabinet.ask("DELETE", f"{FILES}/{file_id}")).status == 200
        seen += page
        after = f"&after={page[-1]}"
    assert seen == made[::-1]


async def test_list_of_a_purpose(gateway: Gateway, cabinet: Cabinet) -> None:
    data = (await cabinet.make())["id"]
    batch = (await cabinet.make(purpose="batch"))["id"]
    assert await cabinet.list("purpose=batch") == [batch]
    assert await cabinet.list("purpose=user_data") == [data]
    assert await cabinet.list("purpose=batch_output") == []
    page = (await cabinet.ask("GET", FILES, query="purpose=batch&limit=1")).json
    assert page["has_more"] is False


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=1&limit=2", "limit"),
        ("order=up", "order"),
        ("purpose=vision", "purpose"),
        ("after=", "after"),
    ],
)
async def test_wrong_query_is_400(cabinet: Cabinet, query: str, param: str) -> None:
    answer = await cabinet.ask("GET", FILES, query=query)
    error = answer.json["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "invalid_value", param)


async def test_temporary_files_are_in_no_list_and_under_no_id(
    gateway: Gateway, cabinet: Cabinet
) -> None:
    made = await cabinet.make()
    (obj,) = gateway.kube.list_objects("gatewayfiles")
    obj["spec"]["request"]["purpose"] = "temporary"
    gateway.kube.put("gatewayfiles", obj)
    assert (await cabinet.ask("GET", f"{FILES}/{made['id']}")).status == 404
    assert await cabinet.list() == []
    gateway.storage.lose()
    assert await cabinet.list() == []


async def test_files_named_by_admins_are_not_listed(gateway: Gateway, cabinet: Cabinet) -> None:
    await cabinet.make()
    (obj,) = gateway.kube.list_objects("gatewayfiles")
    named = {"name": "file-" + "a" * 26}
    gateway.kube.put("gatewayfiles", {"metadata": named, "spec": obj["spec"]})
    assert len(await cabinet.list()) == 1
    gateway.storage.lose()
    assert len(await cabinet.list()) == 1


@pytest.mark.parametrize("lost", [False, True])
async def test_expired_file_is_not_listed(gateway: Gateway, cabinet: Cabinet, lost: bool) -> None:
    gateway.kube.clock = lambda: (datetime.now(UTC) - timedelta(seconds=3600)).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
    gone = await cabinet.make(anchor="created_at", seconds="3600")
    stays = await cabinet.make(anchor="created_at", seconds="3700")
    if lost:
        gateway.storage.lose()
    assert await cabinet.list() == [stays["id"]]
    assert await cabinet.list(f"order=asc&after={gone['id']}") == [stays["id"]]
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert (await cabinet.ask(method, f"{FILES}/{gone['id']}{path}")).status == 404


async def test_list_does_not_use_stale_informer(gateway: Gateway, cabinet: Cabinet) -> None:
    await cabinet.list()
    gateway.files.cut = True
    made = await cabinet.make()
    gateway.files.forget(made["id"])
    assert await cabinet.list() == [made["id"]]
    gateway.kube.order_faults("list_page", Fault(KubernetesUnavailable("away")))
    answer = await cabinet.ask("GET", FILES)
    assert (answer.status, answer.json["error"]["code"]) == (503, "service_unavailable")


async def test_list_after_timeout_uses_informer(
    gateway: Gateway, cabinet: Cabinet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await cabinet.make()
    gateway.storage.lose()
    real = gateway.kube.list_page

    async def list_long(plural: str, **options: Any) -> Page:
        if options.get("token"):
            await asyncio.Event().wait()
        return replace(await real(plural, **options), next_token="there is more")

    monkeypatch.setattr(gateway.kube, "list_page", list_long)
    monkeypatch.setattr("gateway_apiserver.surfaces.files.finder.LIST_SECONDS", 0.1)
    assert (await cabinet.ask("GET", FILES)).status == 503
    assert await cabinet.list() == [made["id"]]


async def test_api_list_does_not_delay_other_lists(gateway: Gateway, cabinet: Cabinet) -> None:
    await cabinet.list()
    made = await cabinet.make()
    known = await gateway.storage.read_version("demo")
    # what is none of the account's files raises the record's version
    gateway.kube.put("gatewayuploads", {"metadata": {"name": "upload-a"}, "spec": {}})
    gateway.files.synced = False
    assert await cabinet.list() == [made["id"]]
    assert await gateway.storage.read_version("demo") == known
