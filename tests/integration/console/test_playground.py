"""The playground in Chromium: a chat that streams, a task, code that does the same."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from playwright.async_api import expect
from tools.programs import find_program

from tests.integration.console.conftest import check_fits, expect_marked, picture
from tests.integration.console.site import HOSTILE
from tests.servers.node import find_node

FILES = {"curl": "call.sh", "python": "call.py", "node": "call.mjs"}


def run_code(folder, language, text, key):
    """What a program of a page prints."""
    (folder / FILES[language]).write_text(text)
    packages = folder / "node_modules"
    if not packages.exists():
        packages.symlink_to(find_program("node-sdks") / "node_modules")
    program = {"curl": "bash", "python": sys.executable, "node": find_node()}[language]
    env = {"PATH": os.environ["PATH"], "GATEWAY_API_KEY": key}
    done = subprocess.run(
        [program, FILES[language]],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="session")]


async def test_chat_streams_and_code_makes_the_same_call(people, visit, tmp_path):
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
    curl, python, node = await page.locator("pre code").all_text_contents()
    for language, text in (("curl", curl), ("python", python), ("node", node)):
        printed = run_code(tmp_path, language, text, people.client.key)
        assert len(printed) > 10
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
    await page.get_by_label("Message").fill("Hello")
    await page.evaluate("document.querySelector('select[name=model]').options[0].value = 'none'")
    await page.evaluate("document.querySelector('select[name=model]').selectedIndex = 0")
    await page.get_by_role("button", name="Send").click()
    await expect_marked(page.get_by_label("Language model"), "model")
    page.complaints.clear()
    await page.get_by_label("Language model").select_option("sim-chat")
    await page.get_by_role("button", name="Send").click()
    await expect(output).to_contain_text("Hello")
    await expect(page.locator("[aria-invalid=true], .wrong")).to_have_count(0)


async def test_chat_works_without_scripts(people, visit):
    page = await visit("owner", "/", java_script_enabled=False)
    await page.goto(f"{people.home}/playground")
    await page.get_by_label("Language model").select_option("sim-chat")
    await page.get_by_label("Message").fill("Hello")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("heading", name="Answer")).to_be_visible()


async def test_code_of_a_task_runs_as_it_is(people, visit, tmp_path):
    page = await visit("member", f"/console/{people.account}/playground")
    form = page.locator("details.more").filter(has_text="(sim)")
    await form.locator("summary").click()
    await form.get_by_role("button", name="Show the code").click()
    first = page.locator("pre code").first
    await expect(first).to_contain_text("your prompt")
    await form.get_by_label("Prompt").fill(HOSTILE)
    await form.get_by_label("Reference image URLs").fill("https://example.com/a.png")
    await form.get_by_label("Duration seconds").fill("3")
    await form.get_by_label("Audio", exact=True).select_option("No")
    await form.get_by_role("button", name="Show the code").click()
    await expect(first).not_to_contain_text("your prompt")
    await expect(form.get_by_label("Prompt")).to_have_value(HOSTILE)
    await check_fits(page)
    await picture(page, "light-playground-task")
    texts = await page.locator("pre code").all_text_contents()
    for language, text in zip(("curl", "python", "node"), texts, strict=True):
        printed = run_code(tmp_path, language, text, people.client.key)
        assert ("processing" if language == "curl" else "completed") in printed
    made = re.search("task_[a-z0-9]+", printed)[0]
    await page.goto(f"{people.home}/tasks/{made}")
    shown = await page.locator("pre code").all_text_contents()
    assert all("duration_seconds" in text for text in shown)
    assert len(shown) == 3
    await check_fits(page)


async def test_task_is_started_and_shown(people, visit):
    page = await visit("member", f"/console/{people.account}/playground")
    form = page.locator("details.more").filter(has_text="(sim)")
    await form.locator("summary").click()
    await form.get_by_label("Prompt").fill(HOSTILE)
    await form.get_by_label("Reference image URLs").fill("https://example.com/a.png")
    await form.get_by_label("Duration seconds").fill("99")
    await form.get_by_role("button", name="Start the task").click()
    form = page.locator("details.more").filter(has_text="(sim)")
    await expect_marked(form.get_by_label("Duration seconds"), "Duration seconds must be 3 to 16.")
    page.complaints.clear()
    await expect(form.get_by_label("Prompt")).to_have_value(HOSTILE)
    await form.get_by_label("Duration seconds").fill("3")
    await form.get_by_role("button", name="Start the task").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("task_")
    await expect(page.get_by_role("main")).to_contain_text("Completed", timeout=15_000)
    await expect(page.get_by_role("main")).to_contain_text("Playground")
