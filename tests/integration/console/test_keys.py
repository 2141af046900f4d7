"""Keys and guardrails in the console: made, shown once, limited, rotated, revoked."""

import pytest
from playwright.async_api import expect

from tests.integration.console.conftest import HOSTILE, check_fits, picture
from tests.servers.tenants import describe_key, wait_status

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
    await expect(page.get_by_role("alert")).to_contain_text("must be an amount in whole cents")
    await expect(page.get_by_label("Limit in dollars")).to_have_value("1.005")
    page.complaints.clear()
    await page.get_by_label("Limit in dollars").fill("99")
    await page.get_by_label("Disabled").check()
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("status")).to_have_text("The change is made.")
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


async def test_member_sees_and_changes_their_own_keys_only(people, visit):
    page = await visit("member")
    foreign = f"{people.home}/keys/{people.client_key_id}"
    await make_key(page, people, "of a member")
    await page.goto(f"{people.home}/keys")
    await expect(page.get_by_role("row")).to_have_count(2)
    await expect(page.get_by_role("link", name="Guardrails")).to_have_count(0)
    for address in (foreign, f"{people.home}/guardrails"):
        answer = await page.goto(address)
        assert answer.status in (403, 404), address
    page.complaints.clear()


async def test_long_lists_of_hostile_names_are_paged_and_searched(people, visit):
    names = [f"{index:02} {HOSTILE}"[:100] for index in range(45)]
    people.world.apply(
        *(describe_key(people.world, people.other, displayName=name)[1] for name in names)
    )
    page = await visit("owner")
    await page.locator("summary").filter(has_text="Account:").click()
    await page.get_by_role("link", name=people.other).first.click()
    await expect(page).to_have_url(f"{people.base}/console/{people.other}")
    await page.get_by_role("link", name="Keys", exact=True).click()
    seen = set()
    for expected in (20, 20, 5):
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(expected)
        seen.update(await rows.locator("td:first-child .value").all_text_contents())
        if expected == 20:
            first = await rows.first.text_content()
            await page.get_by_role("link", name="Next page").click()
            await expect(rows.first).not_to_have_text(first)
    assert {" ".join(name.split()) for name in seen} == {" ".join(name.split()) for name in names}
    await check_fits(page)
    await page.goto(f"{people.base}/console/{people.other}/keys?name_contains=44+%3Cimg")
    await expect(page.locator("tbody tr")).to_have_count(1)


async def test_viewer_has_no_keys_and_cannot_post(people, visit):
    page = await visit("viewer")
    await expect(page.get_by_role("link", name="Keys")).to_have_count(0)
    answer = await page.goto(f"{people.home}/keys")
    assert answer.status == 403
    page.complaints.clear()


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
    await page.get_by_label("Key id").first.fill(people.client_key_id)
    await page.get_by_role("button", name="Put a key under it").click()
    await expect(page.get_by_role("status")).to_contain_text("holds for the key now")
    await check_fits(page)
    await picture(page, "narrow-guardrail")
    await page.get_by_text("Delete", exact=True).click()
    await page.get_by_role("button", name="Delete the guardrail").click()
    await expect(page.get_by_role("status")).to_have_text("It is deleted.")


async def test_account_of_others_is_unknown(people, visit):
    page = await visit("member")
    answer = await page.goto(f"{people.base}/console/{people.other}")
    assert answer.status == 404
    unknown = await page.content()
    answer = await page.goto(f"{people.base}/console/nothing")
    assert answer.status == 404
    assert await page.content() == unknown
    page.complaints.clear()
