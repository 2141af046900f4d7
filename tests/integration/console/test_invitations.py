"""An owner invites a person, who chooses a password by the link; links are used once."""

import asyncio

import pytest
from playwright.async_api import expect

from tests.integration.console.conftest import check_fits, picture
from tests.servers.browser import Browser
from tests.servers.tenants import unique

pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="session")]

CHOSEN = "correct horse battery"


async def invite(people, visit, email):
    """The page that shows the link, and the link."""
    page = await visit("owner", f"/console/{people.account}/members")
    await page.locator("summary", has_text="Invite a person").click()
    await page.get_by_label("Email address").fill(email)
    await page.get_by_label("Role", exact=True).select_option("viewer")
    await page.get_by_role("button", name="Invite", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Link")
    return page, await page.locator(".secret code").inner_text()


async def test_invited_person_chooses_a_password_and_enters(people, visit, chromium):
    email = f"{unique('guest')}@example.com"
    page, link = await invite(people, visit, email)
    await check_fits(page)
    await picture(page, "light-invitation")
    assert link.startswith(f"{people.base}/password#")
    context = await chromium.new_context()
    asked = []
    try:
        guest = await context.new_page()
        guest.on("request", lambda request: asked.append(request.url))
        await guest.goto(link)
        # the script has taken the token from the address
        await expect(guest.get_by_label("The link that you were sent")).to_be_hidden()
        await expect(guest).to_have_url(f"{people.base}/password")
        await expect(guest.get_by_label("New password", exact=True)).to_be_focused()
        await guest.get_by_label("New password", exact=True).fill("password1234")
        await guest.get_by_label("Repeat the new password").fill("password1234")
        await guest.get_by_role("button", name="Save and sign in").click()
        await expect(guest.get_by_role("alert")).to_contain_text("too easy to guess")
        await check_fits(guest)
        await guest.get_by_label("New password", exact=True).fill(CHOSEN)
        await guest.get_by_label("Repeat the new password").fill(CHOSEN)
        await guest.get_by_role("button", name="Save and sign in").click()
        await guest.wait_for_url(f"{people.base}/console/{people.account}")
        token = link.partition("#")[2]
        assert not any(token in url for url in asked)
    finally:
        await context.close()
    await page.goto(f"{people.home}/members")
    await expect(page.get_by_role("row").filter(has_text=email)).to_contain_text("active")


async def test_of_many_simultaneous_uses_of_a_link_one_succeeds(people, visit):
    email = f"{unique('guest')}@example.com"
    _, link = await invite(people, visit, email)

    async def use(number):
        async with Browser(people.base) as browser:
            page = await browser.get("/password")
            chosen = f"{CHOSEN} {number}"
            fields = {"link": link, "password": chosen, "repeated": chosen}
            return (await browser.submit(page, "/password", **fields)).status

    statuses = await asyncio.gather(*(use(number) for number in range(4)))
    assert sorted(statuses) == [303, 403, 403, 403]
    async with Browser(people.base) as browser:
        chosen = f"{CHOSEN} {statuses.index(303)}"
        assert (await browser.sign_in(email, chosen)).status == 303
