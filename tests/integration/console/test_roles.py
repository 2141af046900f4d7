"""The console as each role, over plain HTTP: pages and forms shown, and all else refused."""

import re

import pytest

from gateway_core.accounts.passwords import hash_password
from tests.integration.console.site import crawl
from tests.servers.tenants import describe_user, unique
from tests.servers.world import wait_for

pytestmark = pytest.mark.asyncio(loop_scope="session")
VIEWED = {"", "/tasks", "/tasks/{task}", "/batches", "/batches/{batch}", "/files", "/files/{file}"}
WORKED = VIEWED | {"/playground", "/keys", "/usage"}
GOVERNED = WORKED | {
    *("/keys/{key}", "/guardrails", "/guardrails/{grd}", "/members", "/audit", "/webhooks"),
    "/management-keys",
}
FORMS = {
    "viewer": set(),
    "member": {
        *("/playground/chat", "/playground/task", "/batches", "/files/upload", "/keys"),
        *("/files/{file}/delete", "/tasks/{task}/redeliver"),
    },
}


async def test_each_role_is_shown_its_pages_and_forms(stage):
    sites = stage.sites
    assert sites["viewer"].pages.keys() == VIEWED
    assert sites["member"].pages.keys() == WORKED
    assert sites["admin"].pages.keys() >= GOVERNED
    assert sites["owner"].pages.keys() == sites["admin"].pages.keys()
    for role, forms in FORMS.items():
        assert sites[role].forms.keys() == forms
    assert sites["owner"].forms.keys() == sites["admin"].forms.keys()
    assert sites["admin"].forms.keys() > FORMS["member"]


@pytest.mark.parametrize("role", ["owner", "admin", "member", "viewer"])
async def test_role_is_refused_other_pages_and_sees_nothing_of_others(stage, people, role):
    site = stage.sites[role]
    assert not [secret for secret in stage.secrets if secret in site.text]
    async with stage.enter(people.names[role]) as browser:
        for name, path in stage.sites["owner"].pages.items():
            if name not in site.pages:
                assert (await browser.get(path)).status in (403, 404), name
        # what pages of this account name is not found in the other
        for name, path in site.pages.items():
            if "{" in name:
                page = await browser.get(path.replace(people.account, people.other))
                assert page.status == 404, name
                assert not [secret for secret in stage.secrets if secret in page.body]


async def test_roles_change_by_the_matrix(stage, people):
    world, guest, path = stage.world, unique("guest"), f"{stage.home}/members"
    digest = hash_password(people.password)
    world.apply(describe_user(guest, {people.account: "viewer"}, passwordHash=digest))

    async def change(browser, name, role):
        page = await browser.get(path)
        (member,) = re.findall(rf'/one\?id=(\d+)"[^>]*><bdi>User {name}<', page.body)
        return await browser.submit(page, path, id=member, role=role)

    async with stage.enter(people.names["admin"]) as admin:

        async def is_listed():
            return guest in (await admin.get(path)).body

        await wait_for(is_listed, what="the new member")
        for name, role in ((guest, "owner"), (people.names["owner"], "viewer")):
            assert "Only an owner may do this." in (await change(admin, name, role)).text
        assert (await change(admin, guest, "member")).status == 303
    async with stage.enter(people.names["owner"]) as owner:
        refused = await change(owner, people.names["owner"], "viewer")
        assert "The account has no other owner." in refused.text
        assert (await change(owner, guest, "owner")).status == 303
    found = world.read("gatewayuser", guest)["spec"]
    assert found["memberships"] == [{"accountName": people.account, "role": "owner"}]
    assert found["passwordHash"] == digest
    world.run.kubectl("delete", "gatewayuser", guest, "--wait=false")


@pytest.mark.parametrize("role", ["member", "viewer"])
async def test_forms_of_a_role_that_was_taken_are_refused(stage, people, role):
    """Their tokens are good: they were given to the same person, as an owner."""
    world, name = stage.world, unique("shifting")
    digest = hash_password(people.password)
    world.apply(describe_user(name, {people.account: "owner"}, passwordHash=digest))

    async with stage.enter(name) as browser:
        site = await crawl(browser, stage.home, people.tasks[0])
        assert site.forms.keys() == stage.sites["owner"].forms.keys()
        before = [read(world, obj) for obj in stage.own]
        membership = {"accountName": people.account, "role": role}
        world.patch("gatewayuser", name, {"memberships": [membership]})

        async def is_refused() -> bool:
            return (await browser.get(f"{stage.home}/members")).status == 403

        await wait_for(is_refused, what="the new role")
        for short, (action, fields) in site.forms.items():
            if short in FORMS[role]:
                continue
            answer = await browser.post(action, fields)
            assert answer.status in (403, 404), (short, answer.text)
        assert [read(world, obj) for obj in stage.own] == before
    world.run.kubectl("delete", "gatewayuser", name, "--wait=false")


def read(world, obj):
    return world.read(obj["kind"].lower(), obj["metadata"]["name"])["spec"]
