"""The playground in Chromium: a chat that streams, a task, code that does the same."""

import ast
import json
import shlex

import pytest
from playwright.async_api import expect

from tests.integration.console.conftest import HOSTILE, check_fits, picture

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_chat_streams_and_code_shows_the_same_call(people, visit):
    wide = {"width": 1280, "height": 900}
    page = await visit("member", f"/console/{people.account}/playground", viewport=wide)
    await page.get_by_label("Language model").select_option("sim-chat")
    message = f"It's {HOSTILE} \n $HOME"
    await page.get_by_label("Message").fill(message)
    async with page.expect_response("**/playground/chat") as answering:
        await page.get_by_role("button", name="Send").click()
    answer = await answering.value
    assert answer.headers["content-type"].startswith("text/event-stream")
    output = page.locator("output")
    await expect(output).not_to_have_attribute("aria-busy", "true")
    assert len(await output.text_content()) > 10
    curl, python = await page.locator("pre code").all_text_contents()
    body = json.loads(shlex.split(curl)[-1])
    assert body["messages"][0]["content"] == message
    assert body["model"] == "sim-chat"
    call = next(
        node
        for node in ast.walk(ast.parse(python))
        if isinstance(node, ast.Call) and any(word.arg == "messages" for word in node.keywords)
    )
    given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    assert given["messages"] == body["messages"]
    await check_fits(page)
    await picture(page, "light-playground")
    # nothing of the page is lost where the call is refused
    await page.get_by_label("Message").fill(" ")
    await page.evaluate("document.querySelector('select[name=model]').options[0].value = 'none'")
    await page.evaluate("document.querySelector('select[name=model]').selectedIndex = 0")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("output.problem")).to_contain_text("model")
    page.complaints.clear()


async def test_chat_works_without_scripts(people, visit):
    page = await visit("owner", "/", java_script_enabled=False)
    await page.goto(f"{people.home}/playground")
    await page.get_by_label("Language model").select_option("sim-chat")
    await page.get_by_label("Message").fill("Hello")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("heading", name="Answer")).to_be_visible()


async def test_task_is_started_and_shown(people, visit):
    page = await visit("member", f"/console/{people.account}/playground")
    form = page.locator("details.more").filter(has_text="(sim)")
    await form.locator("summary").click()
    await form.get_by_label("Prompt").fill(HOSTILE)
    await form.get_by_label("Reference image urls").fill("https://example.com/a.png")
    await form.get_by_label("Duration seconds").fill("99")
    await form.get_by_role("button", name="Start the task").click()
    await expect(page.get_by_role("alert")).to_contain_text("duration_seconds")
    page.complaints.clear()
    form = page.locator("details.more").filter(has_text="(sim)")
    await expect(form.get_by_label("Prompt")).to_have_value(HOSTILE)
    await form.get_by_label("Duration seconds").fill("3")
    await form.get_by_role("button", name="Start the task").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("task_")
    await expect(page.get_by_role("main")).to_contain_text("Completed", timeout=15_000)
    await expect(page.get_by_role("main")).to_contain_text("session_member")


async def test_viewer_has_no_playground(people, visit):
    page = await visit("viewer")
    await expect(page.get_by_role("link", name="Playground")).to_have_count(0)
    assert (await page.request.get(f"{people.home}/playground")).status == 403
