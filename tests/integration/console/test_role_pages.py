"""Every page of the console in Chromium: narrow, with hostile names, and by keyboard."""

import pytest

from tests.integration.console.conftest import check_fits, picture
from tests.integration.console.site import ODD

pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("role", ["owner", "member", "viewer"])
async def test_pages_of_a_role_fit_a_narrow_screen(stage, people, visit, role):
    page = await visit(role, stage.home, viewport={"width": 390, "height": 800})
    for name, path in stage.sites[role].pages.items():
        await page.goto(people.base + path)
        await check_fits(page)
        assert await page.locator("main img, main script, main style").count() == 0, name
        await picture(page, f"{role}-390{name.replace('/', '-')}")


async def test_hostile_names_stand_in_their_lists_as_they_are(stage, people, visit):
    page = await visit("owner", stage.home)
    for name in ("keys", "guardrails", "files", "members"):
        await page.goto(f"{people.home}/{name}")
        found = await page.locator("td bdi").all_text_contents()
        # a browser shows no control characters, and keeps them
        assert ODD in found, (name, found)
    await page.goto(f"{people.home}/audit?word={'%E2%80%AE'}")
    await check_fits(page)


WATCH_FOCUS = """() => {
    document.querySelectorAll('details').forEach(each => each.open = true);
    const controls = [...document.querySelectorAll(
        '#main :is(a[href], button, input, select, textarea, summary, pre[tabindex], video)')];
    window.left = new Set(controls.filter(
        each => !each.disabled && each.type !== 'hidden' && each.checkVisibility()));
    window.unseen = [];
    document.addEventListener('focusin', event => {
        window.left.delete(event.target);
        const isSeen = getComputedStyle(event.target).outlineStyle !== 'none';
        if (!isSeen && event.target.tagName !== 'VIDEO') window.unseen.push(event.target.outerHTML);
    });
    const dates = document.querySelectorAll('#main input[type=date]').length;
    const videos = document.querySelectorAll('#main video').length;
    return window.left.size + 3 * dates + 9 * videos;
}"""
"""Notes what gets the focus; how many stops there are, of which dates and videos have several."""


async def test_every_control_of_each_page_is_reached_by_keyboard(stage, people, visit):
    page = await visit("owner", stage.home, viewport={"width": 1280, "height": 900})
    for name, path in stage.sites["owner"].pages.items():
        await page.goto(people.base + path)
        stops = await page.evaluate(WATCH_FOCUS)
        # the link that leads past the navigation
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        for _ in range(stops):
            await page.keyboard.press("Tab")
        left = await page.evaluate("[...window.left].map(each => each.outerHTML)")
        assert (left, await page.evaluate("window.unseen")) == ([], []), name
