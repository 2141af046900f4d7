"""Management keys in the console, and who made a key, in the same words on all pages."""

from typing import Any

import pytest

from gateway_core.accounts.changes import Change, write_changes
from gateway_core.api.ids import name_to_id
from tests.unit.apiserver.browsing import AppBrowser, enter, put_person, read_table
from tests.unit.apiserver.gateway import Gateway

NAME = "key-manager"
PATH = "/console/demo/management-keys"
TOKEN = {"id": "abcdefgh", "digest": "0" * 64, "hint": "mk-ab…yz"}
MADE = "2026-11-20T10:00:00Z"


def put_key(gateway: Gateway, name: str = NAME, *changes: Change, **spec: Any) -> None:
    base = {"accountName": "demo", "class": "Management", "tokens": [TOKEN]}
    meta = {"name": name, "annotations": write_changes(changes)}
    gateway.kube.put(
        "gatewaykeys", {"metadata": meta, "spec": {**base, "displayName": "Manager", **spec}}
    )


async def open_as(gateway: Gateway, role: str) -> AppBrowser:
    put_person(gateway, "ann", demo=role)
    return await enter(gateway, "ann")


@pytest.mark.parametrize("role", ["owner", "admin"])
async def test_owner_and_admin_see_and_revoke_a_management_key(gateway: Gateway, role: str) -> None:
    browser = await open_as(gateway, role)
    put_key(gateway, expirationTime="2099-01-01T00:00:00Z")
    put_key(gateway, "key-standard", **{"class": "Standard"}, displayName="Other")
    [row] = read_table(await browser.get(PATH))
    assert row[:4] == ["Manager", "mk-ab…yz", "active", "Administrator"]
    assert row[5] == "never"
    assert row[6].startswith("2099-01-01")
    one = f"{PATH}/{name_to_id(NAME)}"
    page = await browser.get(one)
    assert "This cannot be undone." in page.body
    done = await browser.follow(await browser.submit(page, f"{one}/revoke"))
    assert "revoked" in done.text
    assert f"{one}/revoke" not in done.body
    key = gateway.kube.find("gatewaykeys", NAME)
    assert key is not None
    assert key["spec"]["revoked"] is True
    audit = await browser.get("/console/demo/audit?word=Manager")
    assert ["ann", "Key", "Manager", "revoked"] in [found[1:] for found in read_table(audit)]


@pytest.mark.parametrize("role", ["member", "viewer"])
async def test_member_and_viewer_neither_see_nor_revoke_them(gateway: Gateway, role: str) -> None:
    put_key(gateway)
    owner = await open_as(gateway, "owner")
    one = f"{PATH}/{name_to_id(NAME)}"
    page = await owner.get(one)
    put_person(gateway, "ann", demo=role)
    assert (await owner.get("/console/demo")).body.count("management-keys") == 0
    for path in (PATH, one):
        answer = await owner.get(path)
        assert answer.status == 403
        assert "Manager" not in answer.body
    assert (await owner.submit(page, f"{one}/revoke")).status == 403
    key = gateway.kube.find("gatewaykeys", NAME)
    assert key is not None
    assert "revoked" not in key["spec"]


async def test_admin_does_not_revoke_the_key_of_an_owner(gateway: Gateway) -> None:
    put_person(gateway, "olga", demo="owner")
    put_key(gateway, createdBy="olga")
    one = f"{PATH}/{name_to_id(NAME)}"
    browser = await open_as(gateway, "owner")
    page = await browser.get(one)
    put_person(gateway, "ann", demo="admin")
    assert f"{one}/revoke" not in (await browser.get(one)).body
    assert (await browser.submit(page, f"{one}/revoke")).status == 403


async def test_key_of_another_account_or_class_is_unknown(gateway: Gateway) -> None:
    browser = await open_as(gateway, "owner")
    put_key(gateway, "key-other", accountName="other")
    put_key(gateway, "key-standard", **{"class": "Standard"})
    put_key(gateway)
    page = await browser.get(f"{PATH}/{name_to_id(NAME)}")
    assert page.status == 200
    for name in ("key-other", "key-standard", "key-none"):
        assert (await browser.get(f"{PATH}/{name_to_id(name)}")).status == 404


@pytest.mark.parametrize(
    ("by", "creator", "who"),
    [
        ("user/olga", None, "Olga"),
        ("user/olga", "ann", "Olga"),
        ("key/key-manager", "ann", "key_manager"),
        (None, "olga", "Olga"),
        (None, "gone", "gone"),
        (None, None, "Administrator"),
    ],
)
async def test_creator_has_one_name_on_all_pages(
    gateway: Gateway, by: str | None, creator: str | None, who: str
) -> None:
    browser = await open_as(gateway, "owner")
    spec = {"displayName": "Olga", "email": "olga@example.com"}
    gateway.kube.put("gatewayusers", {"metadata": {"name": "olga"}, "spec": spec})
    changes = [] if by is None else [Change(MADE, by, "created")]
    named = {} if creator is None else {"createdBy": creator}
    for key_class, path in (("Standard", "keys"), ("Management", "management-keys")):
        name = f"key-{path}"
        put_key(gateway, name, *changes, **{"class": key_class}, displayName=path, **named)
        rows = read_table(await browser.get(f"/console/demo/{path}"))
        [row] = [row for row in rows if row[0] == path]
        assert who in row
        page = await browser.get(f"/console/demo/{path}/{name_to_id(name)}")
        assert f"Created by{who}" in page.text.replace("\n", "")
        audit = await browser.get(f"/console/demo/audit?word={path}")
        assert [row[1] for row in read_table(audit)] == ([] if by is None else [who])
