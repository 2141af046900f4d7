"""HTMX on the console's pages: the pinned files, the strict policy, parts read anew alone."""

from importlib.resources import files

import pytest
from playwright.async_api import expect
from tools.programs import find_program

from tests.servers.tenants import describe_key

pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="session")]
ASSETS = files("gateway_apiserver.surfaces.pages").joinpath("assets")
HX_NAME = '"><b hx-get="/sign-out" hx-trigger="load">x</b>'


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("htmx.min.js", "htmx.org/dist/htmx.min.js"),
        ("sse.min.js", "htmx-ext-sse/dist/sse.min.js"),
    ],
)
async def test_file_is_that_of_the_pinned_package(name, original):
    pinned = find_program("node-sdks") / "node_modules" / original
    assert ASSETS.joinpath(name).read_bytes() == pinned.read_bytes()


async def test_policy_names_each_script_and_allows_no_inline_code(people, visit):
    page = await visit("owner")
    answer = await page.goto(f"{people.home}/tasks")
    policy = dict(
        directive.strip().split(" ", 1)
        for directive in answer.headers["content-security-policy"].split(";")
    )
    sources = policy["script-src"].split()
    assert len(sources) == 3
    assert all(source.startswith(f"{people.base}/assets/") for source in sources)
    assert policy["style-src"] == "'self'"
    assert policy["connect-src"] == "'self'"
    config = await page.evaluate("htmx.config")
    assert (config["allowEval"], config["historyCacheSize"]) == (False, 0)
    assert (config["selfRequestsOnly"], config["includeIndicatorStyles"]) == (True, False)


async def test_names_of_strangers_carry_no_attributes_of_htmx(people, visit):
    people.world.apply(describe_key(people.world, people.other, displayName=HX_NAME)[1])
    page = await visit("owner")
    sent = []
    page.on("request", lambda request: sent.append(request.url))
    await page.goto(f"{people.base}/console/{people.other}/keys?name_contains=hx-get")
    await expect(page.get_by_role("link", name=HX_NAME)).to_be_visible()
    await page.get_by_label("Name", exact=True).last.fill("hx-trigger")
    await expect(page).to_have_url(
        f"{people.base}/console/{people.other}/keys?name_contains=hx-trigger&status="
    )
    await expect(page.get_by_role("link", name=HX_NAME)).to_be_visible()
    assert await page.locator("td [hx-get], td [hx-trigger]").count() == 0
    assert not [url for url in sent if "sign-out" in url]


async def test_paging_keeps_the_page_and_its_address(people, visit):
    keys = [
        describe_key(people.world, people.other, displayName=f"paged {n}")[1] for n in range(25)
    ]
    people.world.apply(*keys)
    page = await visit("owner")
    path = f"{people.base}/console/{people.other}/keys?name_contains=paged"
    await page.goto(path)
    await page.evaluate("window.unchanged = true")
    await page.get_by_role("link", name="Next page").click()
    await expect(page.locator("tbody tr")).to_have_count(5)
    assert await page.evaluate("window.unchanged")
    assert "after=" in page.url
    await page.go_back()
    await expect(page).to_have_url(path)
    await expect(page.locator("tbody tr")).to_have_count(20)


async def test_action_swaps_the_page_and_tells_where_the_focus_goes(people, visit):
    page = await visit("owner")
    await page.goto(f"{people.home}/keys/{people.client_key_id}")
    await page.evaluate("window.unchanged = true")
    await page.get_by_text("Change name, state and limits").click()
    await page.get_by_label("Calls a minute").fill("299")
    await page.get_by_role("button", name="Save").click()
    told = page.get_by_role("status")
    await expect(told).to_have_text("The changes are saved.")
    await expect(told).to_be_focused()
    assert await page.evaluate("window.unchanged")
    assert page.url.endswith(f"/keys/{people.client_key_id}?done=changed")
    # another one, from the form that the swap has brought, with the token that it has
    await page.get_by_text("Change name, state and limits").click()
    await page.get_by_label("Calls a minute").fill("")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("main")).not_to_contain_text("299")


async def test_forged_token_is_refused_for_scripts_too(people, visit):
    page = await visit("owner")
    await page.goto(f"{people.home}/keys/{people.client_key_id}")
    await page.evaluate(
        "document.querySelectorAll('[name=form_token]').forEach(e => e.value = 'x')"
    )
    await page.get_by_text("Change name, state and limits").click()
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert")).to_contain_text("This form is no longer valid")
    page.complaints.clear()


async def test_unchanged_region_is_answered_304(people, visit):
    page = await visit("viewer")
    await page.goto(f"{people.home}/batches")
    seen = await page.evaluate(
        "JSON.parse(document.getElementById('region').getAttribute('hx-headers'))"
    )
    target = {"HX-Request": "true", "HX-Target": "region"}
    again = await page.request.get(page.url, headers={**target, **seen})
    assert again.status == 304
    whole = await page.request.get(page.url, headers=target)
    assert whole.status == 200
    assert "<main" not in await whole.text()


async def test_ended_session_leads_to_the_sign_in(people, visit):
    page = await visit("viewer")
    await page.goto(f"{people.home}/tasks")
    await page.context.clear_cookies()
    await page.get_by_label("State").select_option("Failed")
    await expect(page).to_have_title("Sign in | Model Gateway")


async def test_narrow_navigation_shows_the_current_section(people, visit):
    page = await visit("owner", viewport={"width": 390, "height": 800})
    current = page.locator(".sections [aria-current]")
    await page.goto(f"{people.home}/webhooks")
    await expect(current).to_be_in_viewport(ratio=1)
    # a swap brings another navigation
    await page.get_by_label("Address").fill("http://127.0.0.1:9/")
    await page.get_by_role("button", name="Send a test").click()
    await expect(
        page.get_by_role("alert").or_(page.get_by_text("Result of the test"))
    ).to_be_visible()
    await expect(current).to_have_text("Webhooks")
    await expect(current).to_be_in_viewport(ratio=1)
    assert await page.evaluate("scrollX") == 0
    page.complaints.clear()
