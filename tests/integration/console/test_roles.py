"""Every page of the console as each role: what it shows, what it refuses, and nothing of others."""

import re
from dataclasses import dataclass, field
from html import unescape

import pytest
import pytest_asyncio

from gateway_cli.local.state import ID_KEY, read_shared_secret
from gateway_core.accounts.passwords import hash_password
from gateway_core.api.ids import IdMint, name_to_id
from tests.integration.console.conftest import HOSTILE, check_fits, picture
from tests.servers.browser import Browser
from tests.servers.tenants import describe, describe_key, describe_user, unique
from tests.servers.world import wait_for

pytestmark = pytest.mark.asyncio(loop_scope="session")
ODD = HOSTILE + "\u0007\u0085\u2066\u0627"
"""With control characters, and an isolate that is not closed."""
VIEWED = {"", "/tasks", "/tasks/{task}", "/batches", "/batches/{batch}", "/files", "/files/{file}"}
WORKED = VIEWED | {"/playground", "/keys", "/usage"}
GOVERNED = WORKED | {
    *("/keys/{key}", "/guardrails", "/guardrails/{grd}", "/members", "/audit", "/webhooks")
}
FORMS = {
    "viewer": set(),
    "member": {
        *("/playground/chat", "/playground/task", "/batches", "/files/upload", "/keys"),
        *("/files/{file}/delete", "/tasks/{task}/redeliver"),
    },
}
_ID = re.compile(r"\b(task|file|batch|key|grd)[_-][a-z0-9-]{8,}")
_LINK = re.compile(r'<a [^>]*?href="([^"]+)"')


@dataclass
class Site:
    """What one person reaches from the first page by links: pages, and forms that change things.

    By address without the account's and with kinds in the place of ids; of each the first.
    """

    pages: dict[str, str] = field(default_factory=dict)
    forms: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    text: str = ""


def shorten(home: str, path: str) -> str:
    below = path.removeprefix(home).partition("?")[0]
    return _ID.sub(lambda found: "{" + found[1] + "}", below)


async def crawl(browser: Browser, home: str, task: str) -> Site:
    # the task that has a callback, which others lack
    site, left = Site(), [home, f"{home}/tasks/{task}"]
    while left:
        path = left.pop(0)
        name = shorten(home, path)
        if name in site.pages or name.endswith(("/content", "/csv")):
            continue
        page = await browser.get(path)
        assert page.status == 200, (path, page.text)
        site.pages[name] = path
        site.text += page.body
        for form in page.forms:
            if form.method == "post" and form.action.startswith(home):
                site.forms.setdefault(shorten(home, form.action), (form.action, form.fields))
        links = [unescape(link) for link in _LINK.findall(page.body)]
        left += [
            link for link in links if link == home or link.startswith((f"{home}/", f"{home}?"))
        ]
    return site


def describe_work(world, account, name):
    """A key, guardrail, file, batch and member of an account, all of this name."""
    mint = IdMint(read_shared_secret(world.config.secrets_directory, ID_KEY))
    segment = {"key": f"files/{account}/x", "bytes": 1, "sha256": "0" * 64}
    file = mint.mint_random("file", account)
    request = {
        "accountName": account,
        "purpose": "batch",
        "filename": name,
        "bytes": 1,
        "segments": [segment],
    }
    batch = {"accountName": account, "inputFileName": file}
    run = mint.mint_random("batch", account).replace("_", "-", 1)
    guardrail = mint.mint_random("grd", account).replace("_", "-", 1)
    person = describe_user(unique("person"), {account: "member"}, displayName=name)
    return [
        describe_key(world, account, displayName=name)[1],
        describe("Guardrail", guardrail, {"accountName": account, "displayName": name}),
        describe("File", file, {"request": request}),
        describe("Batch", run, {"request": batch}),
        person,
    ]


class Stage:
    """One account with hostile names, and another account whose names must not be shown to it."""

    def __init__(self, people) -> None:
        self.world, self.people = people.world, people
        self.home = f"/console/{people.account}"
        hidden = unique("hidden")
        self.own = describe_work(self.world, people.account, ODD)
        others = describe_work(self.world, people.other, hidden)
        self.world.apply(*self.own, *others)
        names = [obj["metadata"]["name"] for obj in others]
        self.secrets = [hidden, *names, *map(name_to_id, names)]
        self.sites: dict[str, Site] = {}

    async def enter(self, name: str) -> Browser:
        browser = Browser(self.people.base)
        await browser.__aenter__()
        page = await browser.sign_in(f"{name}@example.com", self.people.password)
        assert page.status == 303, page.text
        return browser


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(people):
    stage = Stage(people)
    for role, name in people.names.items():
        browser = await stage.enter(name)

        async def is_there(browser: Browser = browser) -> bool:
            tasks = await browser.get(f"{stage.home}/tasks")
            batches = await browser.get(f"{stage.home}/batches")
            return "/tasks/task_" in tasks.body and "/batches/batch_" in batches.body

        await wait_for(is_there, what="a task and a batch in their lists")
        stage.sites[role] = await crawl(browser, stage.home, people.tasks[0])
        await browser.__aexit__()
    return stage


async def test_each_role_is_shown_its_pages_and_forms(stage):
    sites = stage.sites
    assert sites["viewer"].pages.keys() == VIEWED
    assert sites["member"].pages.keys() == WORKED
    assert sites["admin"].pages.keys() >= GOVERNED
    assert sites["owner"].pages.keys() == sites["admin"].pages.keys()
    for role, forms in FORMS.items():
        assert sites[role].forms.keys() == forms
    assert sites["owner"].forms.keys() == sites["admin"].forms.keys()
    assert sites["admin"].forms.keys() > FORMS["member"]


@pytest.mark.parametrize("role", ["owner", "admin", "member", "viewer"])
async def test_role_walks_its_pages_and_is_refused_the_others(stage, people, visit, role):
    page = await visit(role, stage.home, viewport={"width": 390, "height": 800})
    site, all_pages = stage.sites[role], stage.sites["owner"].pages
    for name, path in all_pages.items():
        if name not in site.pages:
            refused = await page.request.get(people.base + path)
            assert refused.status in (403, 404), name
            continue
        answer = await page.goto(people.base + site.pages[name])
        assert answer.status == 200
        await check_fits(page)
        assert await page.locator("main img, main script, main style").count() == 0, name
        await picture(page, f"{role}-390{name.replace('/', '-')}")
        shown = await page.content()
        assert not [secret for secret in stage.secrets if secret in shown], name
    # what pages of this account name is not found in the other
    for name, path in site.pages.items():
        if "{" in name:
            beside = path.replace(people.account, people.other)
            answer = await page.request.get(people.base + beside)
            assert answer.status == 404, name
            assert not [secret for secret in stage.secrets if secret in await answer.text()]


async def test_hostile_names_stand_in_their_lists_as_they_are(stage, people, visit):
    page = await visit("owner", stage.home)
    for name in ("keys", "guardrails", "files", "members"):
        await page.goto(f"{people.home}/{name}")
        found = await page.locator("td bdi").all_text_contents()
        # a browser shows no control characters, and keeps them
        assert ODD in found, (name, found)
    await page.goto(f"{people.home}/audit?word={'%E2%80%AE'}")
    await check_fits(page)


@pytest.mark.parametrize("role", ["member", "viewer"])
async def test_forms_of_a_role_that_was_taken_are_refused(stage, people, role):
    """Their tokens are good: they were given to the same person, as an owner."""
    world, name = stage.world, unique("shifting")
    digest = hash_password(people.password)
    world.apply(describe_user(name, {people.account: "owner"}, passwordHash=digest))

    async def enter() -> Browser:
        return await stage.enter(name)

    browser = await enter()
    try:
        site = await crawl(browser, stage.home, people.tasks[0])
        assert site.forms.keys() == stage.sites["owner"].forms.keys()
        before = [read(world, obj) for obj in stage.own]
        membership = {"accountName": people.account, "role": role}
        world.patch("gatewayuser", name, {"memberships": [membership]})

        async def is_refused() -> bool:
            return (await browser.get(f"{stage.home}/members")).status == 403

        await wait_for(is_refused, what="the new role")
        for short, (action, fields) in site.forms.items():
            if short in FORMS[role]:
                continue
            answer = await browser.post(action, fields)
            assert answer.status in (403, 404), (short, answer.text)
        assert [read(world, obj) for obj in stage.own] == before
    finally:
        await browser.__aexit__()
        world.run.kubectl("delete", "gatewayuser", name, "--wait=false")


def read(world, obj):
    return world.read(obj["kind"].lower(), obj["metadata"]["name"])["spec"]


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
