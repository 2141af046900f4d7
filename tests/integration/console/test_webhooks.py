"""The webhook secret in the console: made, shown once, rotated, and tested with a real receiver."""

import pytest
from playwright.async_api import expect
from standardwebhooks import WebhookVerificationError

from gateway_core.accounts.passwords import hash_password
from tests.integration.console.conftest import check_fits, expect_marked, picture
from tests.servers.receivers import Receiver, answer
from tests.servers.tenants import describe_account, describe_user, unique

pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="session")]


async def rotate(page, people):
    await page.locator("summary", has_text="New secret").click()
    await page.get_by_role("button", name="Make a new secret").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("The webhook secret")
    secret = await page.locator("pre code").text_content()
    people.world.secrets.add(secret)
    return secret


async def send_test(page, url):
    await page.get_by_label("Address").fill(url)
    await page.get_by_role("button", name="Send a test").click()


@pytest.fixture
def bare(people):
    """An account without a webhook secret, and its owner."""
    account = unique("bare")
    name = unique("boss")
    people.world.apply(
        describe_account(account),
        describe_user(name, {account: "owner"}, passwordHash=hash_password(people.password)),
    )
    people.names[name] = name
    return account, name


async def test_owner_makes_a_secret_and_receivers_verify_tests(people, visit, bare):
    account, owner = bare
    page = await visit(owner, f"/console/{account}/webhooks")
    main = page.get_by_role("main")
    await expect(main).to_contain_text("missing")
    async with Receiver() as receiver:
        url = receiver.locate("hook")
        await send_test(page, url)
        await expect(page.get_by_role("alert")).to_contain_text("has no usable secret")
        page.complaints.clear()
        first = await rotate(page, people)
        await picture(page, "light-webhook-secret")
        await page.locator("p.back a").click()
        await expect(main).to_contain_text("active")
        assert first not in await page.content()
        await send_test(page, url)
        await expect(main).to_contain_text("answered 200")
        await expect(page.get_by_label("Address")).to_have_value(url)
        await check_fits(page)
        await picture(page, "light-webhooks")
        (arrival,) = receiver.arrivals
        assert arrival.verify(first)["status"] == "completed"

        second = await rotate(page, people)
        await page.locator("p.back a").click()
        await send_test(page, url)
        await expect(main).to_contain_text("answered 200")
        for secret in (first, second):
            assert receiver.arrivals[-1].verify(secret)
        with pytest.raises(WebhookVerificationError):
            arrival.verify(second)
        # receivers that have the first secret would refuse all
        await page.locator("summary", has_text="New secret").click()
        await page.get_by_role("button", name="Make a new secret").click()
        await expect(page.get_by_role("alert")).to_contain_text("was changed already")
        page.complaints.clear()
    spec = people.world.read("gatewayaccount", account)["spec"]
    assert spec["webhookSecretRef"]["name"] == f"{account}-webhook-b"
    assert spec["previousWebhookSecretRef"]["name"] == f"{account}-webhook-a"


async def test_result_of_a_test_is_that_of_a_callback_and_tests_are_bounded(people, visit, bare):
    account, owner = bare
    page = await visit(owner, f"/console/{account}/webhooks")
    main = page.get_by_role("main")
    await rotate(page, people)
    await page.locator("p.back a").click()
    async with Receiver() as receiver:
        await send_test(page, receiver.always("no", answer(500)))
        await expect(main).to_contain_text("answered 500")
        await expect(main).to_contain_text("undelivered")
    await send_test(page, "http://127.0.0.1:9/")
    await expect(main).to_contain_text("no connection")
    await send_test(page, "http://10.0.0.1/")
    await expect_marked(page.get_by_label("Address"), "Address must not name a private address.")
    for _ in range(11):
        await send_test(page, "http://127.0.0.1:9/")
        await expect(page.locator("form.htmx-request")).to_have_count(0)
        if await page.get_by_text("Too many attempts").count():
            break
    else:
        raise AssertionError("tests are not bounded")
    page.complaints.clear()
