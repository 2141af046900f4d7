"""Keys and guardrails in the console: made, shown once, limited, rotated, revoked."""

import pytest
from playwright.async_api import expect

from tests.integration.console.conftest import check_fits, expect_marked, picture
from tests.integration.console.site import HOSTILE
from tests.servers.tenants import wait_status

pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="session")]


async def make_key(page, people, name):
    """Makes a key by the form; its secret."""
    await page.goto(f"{people.home}/keys")
    await page.get_by_text("New key", exact=True).first.click()
    await page.get_by_label("Name").first.fill(name)
    await page.get_by_label("Limit in dollars").fill("12.50")
    await page.get_by_label("Window").select_option("daily")
    await page.get_by_role("button", name="Make a key").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("The key's secret")
    secret = await page.locator("pre code").text_content()
    people.world.secrets.add(secret)
    return secret


async def test_owner_makes_limits_rotates_and_revokes_a_key(people, visit):
    page = await visit("owner", viewport={"width": 1280, "height": 900})
    secret = await make_key(page, people, HOSTILE[:60])
    await check_fits(page)
    await picture(page, "light-secret")
    await wait_status(people.client, 200, key=secret)
    await page.get_by_role("link", name=HOSTILE[:20]).click()
    main = page.get_by_role("main")
    await expect(main).to_contain_text("$12.50 (daily)")
    await picture(page, "light-key")
    await page.goto(f"{people.home}/keys")
    assert secret not in await page.content()
    await picture(page, "light-keys")
    await page.get_by_role("link", name=HOSTILE[:20]).first.click()

    await page.get_by_text("Change name, state and limits").click()
    await page.get_by_label("Limit in dollars").fill("1.005")
    await page.get_by_role("button", name="Save").click()
    await expect_marked(
        page.get_by_label("Limit in dollars"),
        "Limit in dollars must be an amount in whole cents.",
    )
    await expect(page.get_by_label("Limit in dollars")).to_have_value("1.005")
    page.complaints.clear()
    await page.get_by_label("Limit in dollars").fill("99")
    await page.get_by_label("Disabled").check()
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("status")).to_have_text("The changes are saved.")
    await expect(main).to_contain_text("disabled")
    await wait_status(people.client, 401, key=secret)

    await page.get_by_text("New secret", exact=True).click()
    await page.get_by_role("button", name="Make a new secret").click()
    second = await page.locator("pre code").text_content()
    assert second != secret
    await page.locator("p.back a").click()
    await page.get_by_text("Revoke", exact=True).click()
    await page.get_by_role("button", name="Revoke the key").click()
    await expect(page.get_by_role("status")).to_contain_text("The key is revoked.")
    await expect(page.get_by_role("button", name="Revoke the key")).to_have_count(0)

    await page.goto(f"{people.home}/audit?word=img")
    changes = [row for row in await page.get_by_role("row").all_text_contents() if "Key" in row]
    for text, change in zip(
        ("revoked", "new secret", "changed disabled, limit", "created"), changes, strict=False
    ):
        assert text in change
        assert f"User {people.names['owner']}" in change
    await picture(page, "light-audit")


async def test_guardrail_holds_for_a_key(people, visit):
    narrow = {"width": 320, "height": 700}
    page = await visit("admin", f"/console/{people.account}/guardrails", viewport=narrow)
    await expect(page.get_by_text("There are no guardrails yet.")).to_be_visible()
    await picture(page, "narrow-guardrails-empty")
    await page.get_by_text("New guardrail", exact=True).first.click()
    await page.get_by_label("Name").fill("Team")
    await page.get_by_label("Calls a minute").fill("1000")
    await page.get_by_role("button", name="Make a guardrail").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Team")
    await page.get_by_text("Put a key under it", exact=True).first.click()
    await page.get_by_label("Key", exact=True).first.select_option(people.client_key_id)
    await page.get_by_role("button", name="Put a key under it").click()
    await expect(page.get_by_role("status")).to_contain_text("holds for the key now")
    await check_fits(page)
    await picture(page, "narrow-guardrail")
    await page.get_by_text("Delete", exact=True).click()
    await page.get_by_role("button", name="Delete the guardrail").click()
    await expect(page.get_by_role("status")).to_have_text("Deleted.")
