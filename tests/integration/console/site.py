"""What people of each role reach of the console by links, over plain HTTP."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape

from gateway_cli.local.state import ID_KEY, read_shared_secret
from gateway_core.api.ids import IdMint, name_to_id
from tests.servers.browser import Browser
from tests.servers.tenants import describe, describe_key, describe_user, unique

HOSTILE = '<img src=x onerror="alert(1)"> \u202egpj.exe\u202c 👩‍🚀 {{7*7}}'
"""Markup, right-to-left, emoji, a template's expression."""
ODD = HOSTILE + "\u0007\u0085\u2066\u0627"
"""With control characters, and an isolate that is not closed."""
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


class RoleScene:
    """An account with hostile names, and another account whose names must not be shown to it."""

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

    @asynccontextmanager
    async def enter(self, name: str) -> AsyncIterator[Browser]:
        """Opens a browser in which a user is signed in."""
        async with Browser(self.people.base) as browser:
            page = await browser.sign_in(f"{name}@example.com", self.people.password)
            assert page.status == 303, page.text
            yield browser
