"""The console's first pages in real Chromium: overview, tasks, and what each role sees."""

import asyncio
import time

import pytest
from playwright.async_api import expect

from gateway_core.kube.row_index import NEW_SECONDS
from tests.integration.console.conftest import check_fits, picture
from tests.servers.world import wait_for

pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="session")]
VIEWS = {
    "light": {"viewport": {"width": 1280, "height": 900}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 320, "height": 640}},
}


@pytest.mark.parametrize("view", VIEWS)
async def test_owner_reads_overview_and_plays_a_video(people, visit, view):
    page = await visit("owner", **VIEWS[view])
    await expect(page).to_have_title("Overview | Model Gateway")
    main = page.get_by_role("main")
    await expect(main).to_contain_text("Spent this month")
    await expect(page.locator("svg.plot")).to_have_count(2)
    await check_fits(page)
    await picture(page, f"{view}-overview")
    await page.get_by_role("link", name="Tasks", exact=True).click()
    for task in people.tasks:
        await expect(page.get_by_role("row").filter(has_text=task)).to_be_visible()
    await check_fits(page)
    await picture(page, f"{view}-tasks")
    await page.get_by_role("link", name=people.tasks[0]).click()
    await expect(main).to_contain_text("{{7*7}}")
    await check_fits(page)
    video = page.locator("video")
    await expect(video).to_have_count(1)
    await video.evaluate("v => v.play().catch(() => null)")
    await picture(page, f"{view}-task")
    assert await video.evaluate("v => v.error?.message ?? null") is None
    await page.wait_for_function("document.querySelector('video').readyState >= 1")


async def test_task_list_follows_new_tasks_without_a_reload(people, visit):
    page = await visit("viewer", f"/console/{people.account}/tasks?model=none")
    await page.goto(f"{people.home}/tasks")
    await page.evaluate("window.unchanged = true")
    before = await page.get_by_role("row").count()
    made = (await people.client.create(prompt="Live", duration_seconds=3)).body["id"]
    await expect(page.get_by_role("row")).to_have_count(before + 1, timeout=10_000)
    row = page.get_by_role("row").filter(has_text=made)
    await expect(row).to_contain_text("Completed", timeout=15_000)
    assert await page.evaluate("window.unchanged")


async def test_change_before_the_event_stream_opens_is_shown(people, visit):
    page = await visit("viewer", f"/console/{people.account}/tasks")
    may_open = asyncio.Event()

    async def hold(route):
        await may_open.wait()
        await route.continue_()

    await page.route("**/events/tasks", hold)
    await page.goto(f"{people.home}/tasks", wait_until="domcontentloaded")
    listed_at = time.monotonic()
    made = (await people.client.create(prompt="Early", duration_seconds=3)).body["id"]
    await people.client.wait_terminal([made])
    # a list that is new begins each stream with an event anyway
    await wait_for(lambda: time.monotonic() > listed_at + NEW_SECONDS, what="the list's age")
    may_open.set()
    row = page.get_by_role("row").filter(has_text=made)
    await expect(row).to_contain_text("Completed", timeout=15_000)


async def test_hidden_page_reads_nothing_until_it_is_shown(people, visit):
    page = await visit("viewer", f"/console/{people.account}/tasks")
    show = """isHidden => {
        Object.defineProperty(document, 'hidden', {get: () => isHidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    await page.evaluate(show, True)
    reads = []
    page.on("request", lambda sent: reads.append(sent) if sent.resource_type == "fetch" else None)
    other = await visit("viewer", f"/console/{people.account}/tasks")
    made = (await people.client.create(prompt="Hidden", duration_seconds=3)).body["id"]
    row = other.get_by_role("row").filter(has_text=made)
    await expect(row).to_contain_text("Completed", timeout=15_000)
    assert not reads
    await page.evaluate(show, False)
    await expect(page.get_by_role("row").filter(has_text=made)).to_contain_text("Completed")


async def test_filters_pages_and_search(people, visit):
    page = await visit("member", f"/console/{people.account}/tasks")
    await page.get_by_label("State").select_option("Failed")
    await expect(page.get_by_text("No task matches.")).to_be_visible()
    await expect(page).to_have_url(f"{people.home}/tasks?status=failed&model=&key=&text=")
    await page.get_by_label("Model").press_sequentially("no such model")
    await expect(page.get_by_role("alert")).to_have_text("Model must be the id of a model.")
    await expect(page.get_by_label("Model")).to_be_focused()
    page.complaints.clear()
    await page.goto(f"{people.home}/tasks")
    await page.get_by_label("Task id").fill(people.tasks[1])
    await page.get_by_role("button", name="Open").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(people.tasks[1])
