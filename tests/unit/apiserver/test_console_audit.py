"""Rows of the audit page, those of removed objects too, and what a view costs."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway_apiserver.surfaces.console import audit
from gateway_core.accounts.changes import Change, write_changes
from gateway_core.accounts.remains import archive_removed
from tests.unit.apiserver.browsing import AppBrowser, enter, put_grant, put_person, read_table
from tests.unit.apiserver.gateway import Gateway


@pytest.fixture
async def browser(gateway: Gateway) -> AppBrowser:
    put_person(gateway, "ann", demo="owner")
    return await enter(gateway, "ann")


async def test_search_is_sent_on_submit_alone(browser: AppBrowser) -> None:
    page = await browser.get("/console/demo/audit?word=gone")
    assert page.status == 200
    form = page.form("/console/demo/audit")
    assert (form.method, form.fields) == ("get", {"word": "gone"})
    assert "hx-trigger" not in page.body


async def test_views_of_an_account_read_the_store_in_turn(
    browser: AppBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, most = 0, 0

    async def list_slowly(*_: Any) -> list[Any]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0.02)
        reading -= 1
        return []

    monkeypatch.setattr(audit, "list_removed", list_slowly)
    pages = await asyncio.gather(*(browser.get("/console/demo/audit") for _ in range(5)))
    assert [page.status for page in pages] == [200] * 5
    assert most == 1


EARLY, LATE = "2026-11-20T10:00:00Z", "2026-11-20T11:00:00Z"
CREATED = Change(EARLY, "user/ann", "created")
DELETED = Change(LATE, "client/", "deleted")


async def archive(gateway: Gateway, plural: str, name: str, *rows: Change, shown: str) -> None:
    obj = {
        "metadata": {"name": name, "creationTimestamp": EARLY},
        "spec": {"displayName": shown},
    }
    await archive_removed(gateway.store, plural, "demo", obj, rows)


async def read_rows(browser: AppBrowser, word: str) -> list[list[str]]:
    """The rows with the word, without their time."""
    page = await browser.get(f"/console/demo/audit?word={word}")
    assert page.status == 200
    return [row[1:] for row in read_table(page)]


@pytest.mark.parametrize(
    ("plural", "kind"),
    [
        ("gatewaykeys", "Key"),
        ("gatewayguardrails", "Guardrail"),
        ("gatewayusers", "Member"),
        ("gatewaygrants", "Application"),
    ],
)
async def test_rows_of_removed_objects_are_shown(
    gateway: Gateway, browser: AppBrowser, plural: str, kind: str
) -> None:
    await archive(gateway, plural, "x", CREATED, DELETED, shown="Gone")
    assert await read_rows(browser, "Gone") == [
        ["Administrator", kind, "Gone", "deleted"],
        ["ann", kind, "Gone", "created"],
    ]


async def test_object_with_the_name_of_a_removed_one_has_no_row_twice(
    gateway: Gateway, browser: AppBrowser
) -> None:
    own = Change("2026-11-21T10:00:00Z", "user/ann", "changed displayName")
    meta = {"name": "key-x", "annotations": write_changes([own])}
    spec = {"accountName": "demo", "displayName": "Again", "tokens": []}
    gateway.kube.clock = lambda: LATE
    gateway.kube.put("gatewaykeys", {"metadata": meta, "spec": spec})
    # an interrupted deletion of the present one has noted an end that was none
    await archive(gateway, "gatewaykeys", "key-x", CREATED, DELETED, own, shown="Again")
    texts = [row[3] for row in await read_rows(browser, "Again")]
    assert texts == ["changed displayName", "deleted", "created"]


async def test_rows_of_an_object_that_is_removed_meanwhile_are_shown_once(
    gateway: Gateway, browser: AppBrowser
) -> None:
    """The page reads the objects that exist first, then the remains of the others."""
    gateway.kube.clock = lambda: EARLY
    given = Change(EARLY, "user/ann", "access given")
    put_grant(gateway, "x", "ann", clientName="Editor")
    await archive(gateway, "gatewaygrants", "grant-x", given, shown="Editor")
    meta = {"name": "key-x", "annotations": write_changes([CREATED])}
    spec = {"accountName": "demo", "displayName": "Editor", "tokens": []}
    gateway.kube.put("gatewaykeys", {"metadata": meta, "spec": spec})
    await archive(gateway, "gatewaykeys", "key-x", CREATED, DELETED, shown="Editor")
    texts = [row[3] for row in await read_rows(browser, "Editor")]
    assert sorted(texts) == ["access given", "created"]


async def test_most_removed_objects_fill_the_page(gateway: Gateway, browser: AppBrowser) -> None:
    for n in range(60):
        for plural in ("gatewaykeys", "gatewaygrants"):
            await archive(gateway, plural, f"x-{n}", DELETED, shown=f"Gone {n}")
    assert len(await read_rows(browser, "Gone")) == 100


async def test_change_of_a_member_who_has_left_stays(gateway: Gateway, browser: AppBrowser) -> None:
    noted = [[EARLY, "user/ann", "role changed from owner to viewer", "demo"]]
    annotations = {"modelgateway.dev/changes": orjson.dumps(noted).decode()}
    spec = {"displayName": "Bob", "email": "bob@example.com"}
    gateway.kube.put(
        "gatewayusers", {"metadata": {"name": "bob", "annotations": annotations}, "spec": spec}
    )
    assert await read_rows(browser, "Bob") == [
        ["ann", "Member", "Bob", "role changed from owner to viewer"]
    ]


async def test_application_cannot_pass_for_an_administrator(
    gateway: Gateway, browser: AppBrowser
) -> None:
    row = Change(LATE, "application/Administrator", "access revoked")
    await archive(gateway, "gatewaygrants", "grant-a", row, shown="Administrator")
    [(who, *_)] = await read_rows(browser, "revoked")
    assert who == "Application Administrator"
