"""Every page of the console under axe, light and dark, wide and narrow; and by keyboard alone."""

import pytest
from playwright.async_api import expect
from tools.programs import find_program

from tests.integration.console.conftest import check_fits, picture

pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="session")]
PAGES = (
    "",
    "/tasks",
    "/tasks?status=failed",
    "/tasks/{task}",
    "/tasks/task_unknown",
    "/playground",
    "/batches",
    "/files",
    "/keys",
    "/keys/{key}",
    "/guardrails",
    "/usage",
    "/members",
    "/webhooks",
    "/management-keys",
    "/audit",
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("scheme", "width", "rules"),
    [("light", 1280, ["wcag2a", "wcag2aa", "wcag21aa"]), ("dark", 320, ["color-contrast"])],
    ids=["light-wide", "dark-narrow"],
)
async def test_axe_finds_nothing_on_any_page(people, visit, scheme, width, rules):
    view = {"width": width, "height": 800}
    page = await visit("owner", color_scheme=scheme, viewport=view)
    package = find_program("node-sdks") / "node_modules" / "axe-core"
    axe = (package / "axe.min.js").read_text()
    found = {}
    for path in PAGES:
        named = path.format(task=people.tasks[0], key=people.client_key_id)
        await page.goto(people.home + named)
        await page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        await page.evaluate(axe)
        result = await page.evaluate("rules => axe.run(document, {runOnly: rules})", rules)
        assert len(result["passes"]) >= len(rules)
        if result["violations"]:
            found[path] = [
                (each["id"], [node["html"] for node in each["nodes"]])
                for each in result["violations"]
            ]
        await page.evaluate("document.querySelector('.accounts').open = false")
        await check_fits(page)
        await picture(page, f"{scheme}-{width}{named.split('?')[0].replace('/', '-')}")
    assert found == {}
    page.complaints.clear()  # the task that is unknown


async def test_key_is_made_by_keyboard_alone(people, visit):
    page = await visit("owner", f"/console/{people.account}/keys")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    summary = page.locator("summary", has_text="New key")
    await expect(summary).to_be_focused()
    outline = "e => getComputedStyle(e).outlineStyle"
    assert await summary.evaluate(outline) == "solid"
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await page.keyboard.type("By keyboard")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("The key's secret")
    people.world.secrets.add(await page.locator("pre code").text_content())
