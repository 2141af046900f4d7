"""The audit page: deletions, roles and changes with kubectl are shown, to their account alone."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from gateway_core.accounts.passwords import hash_password
from gateway_core.api.times import parse_time
from tests.integration.console.conftest import check_fits, picture
from tests.integration.console.site import HOSTILE
from tests.servers.tenants import describe_key, describe_user, unique
from tests.servers.world import wait_for

pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="session")]


async def find_changes(page, people, word):
    """The cells of each change with the word, without its time."""
    await page.goto(f"{people.home}/audit?word={word}")
    rows = page.locator("tbody tr")
    return [
        [text.strip() for text in (await row.locator(".value").all_text_contents())[1:]]
        for row in await rows.all()
    ]


async def test_deletion_shows_who_deleted_what(people, visit):
    name = f"Gone {HOSTILE}"[:60]
    page = await visit("admin", f"/console/{people.account}/guardrails")
    await page.locator("summary", has_text="New guardrail").click()
    await page.get_by_label("Name").fill(name)
    await page.get_by_role("button", name="Make a guardrail").click()
    await page.get_by_text("Delete", exact=True).click()
    await page.get_by_role("button", name="Delete the guardrail").click()
    await expect(page.get_by_role("status")).to_have_text("Deleted.")
    who = f"User {people.names['admin']}"
    assert await find_changes(page, people, "Gone") == [
        [who, "Guardrail", name, "deleted"],
        [who, "Guardrail", name, "created"],
    ]
    await check_fits(page)


async def test_change_of_a_role_shows_who_made_it_in_its_account_alone(people, visit):
    guest = unique("guest")
    roles = {people.account: "viewer", people.other: "viewer"}
    people.world.apply(describe_user(guest, roles, passwordHash=hash_password(people.password)))
    page = await visit("owner", f"/console/{people.account}/members")
    await page.locator("summary", has_text="Change a role").click()
    options = page.get_by_label("Member").locator("option")
    label = await options.filter(has_text=guest).text_content()
    await page.get_by_label("Member").select_option(label=label)
    await page.get_by_label("New role").select_option("member")
    await page.get_by_role("button", name="Change a role").click()
    await expect(page.get_by_role("row").filter(has_text=guest)).to_contain_text("member")
    who, text = f"User {people.names['owner']}", "role changed from viewer to member"
    assert [who, "Member", f"User {guest}", text] in await find_changes(page, people, guest)
    await picture(page, "light-audit-roles")
    await page.goto(f"{people.base}/console/{people.other}/audit?word={guest}")
    await expect(page.get_by_text("No change matches.")).to_be_visible()
    people.world.run.kubectl("delete", "gatewayuser", guest, "--wait=false")


async def test_change_with_kubectl_shows_the_program(people, visit):
    key, obj = describe_key(people.world, people.account, displayName="By an admin")
    people.world.apply(obj)
    where = "jsonpath={.metadata.creationTimestamp}"
    created = parse_time(
        people.world.run.kubectl("get", "gatewaykey", key.name, "-o", where).strip()
    )
    # times are noted in whole seconds: within one, a change cannot be told from the creation
    await wait_for(lambda: datetime.now(UTC) >= created + timedelta(seconds=1), what="a second")
    patch = json.dumps({"spec": {"displayName": "Renamed"}})
    people.world.run.kubectl(
        "patch", "gatewaykey", key.name, "--type=merge", "-p", patch, "--field-manager=terraform"
    )
    page = await visit("owner")
    found = await find_changes(page, people, "terraform")
    assert ["Administrator, by terraform", "Key", "Renamed", "changed"] in found
