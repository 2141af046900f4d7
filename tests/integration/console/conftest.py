"""One account with a history, and people of each role in it; one of them has a second account."""

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, async_playwright, expect
from tools.programs import find_program

from gateway_core.accounts.passwords import generate_password, hash_password
from tests.integration.console.site import HOSTILE, RoleScene, crawl
from tests.servers.browser import Browser as HttpBrowser
from tests.servers.tenants import describe_account, describe_key, describe_user, unique, wait_known
from tests.servers.world import wait_for

SCREENSHOTS = os.environ.get("GATEWAY_TEST_SCREENSHOTS")


class People:
    """Users by role; all have one password."""

    def __init__(self, world, account, other):
        self.world, self.account, self.other = world, account, other
        self.base = world.env["GATEWAY_BASE_URL"]
        self.password = generate_password()
        self.states = {}
        digest = hash_password(self.password)
        self.names = {role: unique(role) for role in ("owner", "admin", "member", "viewer")}
        roles = {role: {account: role} for role in self.names}
        roles["owner"][other] = "owner"
        world.apply(
            *(
                describe_user(name, roles[role], passwordHash=digest)
                for role, name in self.names.items()
            )
        )

    @property
    def home(self):
        return f"{self.base}/console/{self.account}"

    async def sign_in(self, page: Page, role: str, after: str = "/") -> None:
        await page.goto(f"{self.base}{after}")
        await page.get_by_label("Email address").fill(f"{self.names[role]}@example.com")
        await page.get_by_label("Password").fill(self.password)
        await page.get_by_role("button", name="Sign in").click()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def people(world):
    """For each module, an account with two completed tasks, one called back in vain, and people.

    Tests of other modules end all sessions.
    """
    account, other = unique("acct"), unique("zzz")
    key, key_object = describe_key(world, account, displayName=HOSTILE)
    world.apply(
        describe_account(account, displayName=HOSTILE[:100]), describe_account(other), key_object
    )
    people = People(world, account, other)
    async with world.client(key.plaintext, account) as client:
        await wait_known(client, seconds=30)
        people.client, people.client_key_id = client, key.name.replace("-", "_", 1)
        receiver = "http://127.0.0.1:9/hook"
        made = [
            (await client.create(prompt=HOSTILE, callback_url=receiver, duration_seconds=3)).body,
            (await client.create(prompt="A quiet sea", duration_seconds=4)).body,
        ]
        people.tasks = [task["id"] for task in made]
        ended = await client.wait_terminal(people.tasks)
        assert {body["status"] for body in ended.values()} == {"completed"}
        yield people


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(people):
    """The sites of all roles."""
    stage = RoleScene(people)
    for role, name in people.names.items():
        async with stage.enter(name) as browser:

            async def is_there(browser: HttpBrowser = browser) -> bool:
                tasks = await browser.get(f"{stage.home}/tasks")
                batches = await browser.get(f"{stage.home}/batches")
                return "/tasks/task_" in tasks.body and "/batches/batch_" in batches.body

            await wait_for(is_there, what="a task and a batch in their lists")
            stage.sites[role] = await crawl(browser, stage.home, people.tasks[0])
    return stage


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_program("chromium"),
            # Chromium has no sandbox for root
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def visit(chromium, people):
    """Opens a page of a new profile, signed in; complaints of the browser fail the test."""
    pages = []

    async def open_as(role, after="/", **options):
        state = people.states.get(role)
        context = await chromium.new_context(storage_state=state, **options)
        page = await context.new_page()
        page.complaints = []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: page.complaints.append(f"dialog {dialog.message}"))
        pages.append(page)
        if state is None:
            await people.sign_in(page, role, after)
            people.states[role] = await context.storage_state()
        else:
            await page.goto(f"{people.base}{after}")
        return page

    yield open_as
    for page in pages:
        await page.context.close()
        assert not page.complaints


async def picture(page: Page, name: str) -> None:
    if SCREENSHOTS:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=True)


async def check_fits(page: Page) -> None:
    """Nothing is wider than the screen, and there is one heading of the first level."""
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not await page.evaluate(wide), page.url
    await expect(page.locator("h1")).to_have_count(1)


async def expect_marked(control: Locator, text: str) -> None:
    """The control has the keyboard, is marked, and is described by its problem."""
    await expect(control).to_be_focused()
    await expect(control).to_be_in_viewport()
    await expect(control).to_have_attribute("aria-invalid", "true")
    await expect(control).to_have_accessible_description(re.compile(re.escape(text)))
