"""kill -9 of the API at steps of an invitation and of a recovery: no link is lost or used twice.

A client whose answer was lost repeats the call: the owner gets a link, and the person has one
password.
"""

import asyncio
import json
import random
import re
from collections.abc import Awaitable
from typing import Any

import aiohttp
import pytest

from gateway_core.accounts.passwords import generate_password, hash_password
from tests.crash.steps import PASSWORD_LINKS, choose
from tests.servers.browser import Browser, Page
from tests.servers.tenants import describe_user, unique
from tests.servers.world import World, wait_for
from tests.shares import share

KILLS_A_STEP = 3
LINK_STEPS = ("before-link", "after-link")
OLD, FIRST, SECOND = "an old password of hers", "correct horse battery", "another horse battery"


class Scene:
    """An owner at their browser, and a person who is invited, or has lost the password."""

    def __init__(self, world: World, account: str, *, is_member: bool) -> None:
        self.world = world
        self.is_member = is_member
        self.owner, self.name = unique("owner"), unique("guest")
        self.email, self.password = f"{self.name}@example.com", generate_password()
        self.members = f"/console/{account}/members"
        base = world.env["GATEWAY_BASE_URL"]
        # attempts are limited by address
        self.address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.7"
        self.browser = Browser(base, local_host=self.address)
        hashed = hash_password(self.password)
        people = [describe_user(self.owner, {account: "owner"}, passwordHash=hashed)]
        if is_member:
            hashed = hash_password(OLD)
            people.append(describe_user(self.name, {account: "viewer"}, passwordHash=hashed))
        world.apply(*people)

    def open(self) -> Browser:
        """A browser that nobody has signed in at."""
        return Browser(self.browser.base, local_host=self.address)

    async def enter(self) -> None:
        """The owner signs in."""
        owner = f"{self.owner}@example.com"

        async def has_entered() -> bool:
            return (await self.browser.sign_in(owner, self.password)).status == 303

        await wait_for(has_entered, what="the owner's session")

    async def make_link(self) -> str:
        """The link that the owner is shown."""
        if self.is_member:
            page, action = await self._find_member(), f"{self.members}/link"
            answer = await self.browser.submit(page, action)
        else:
            page, action = await self.browser.get(self.members), f"{self.members}/invite"
            answer = await self.browser.submit(page, action, email=self.email, role="viewer")
        assert answer.status == 200, answer.text
        found = re.search(r"/password#[\w.-]+", answer.text)
        assert found is not None, answer.text
        return found[0]

    async def _find_member(self) -> Page:
        listed = await self.browser.get(self.members)
        for wire_id in re.findall(r"members/one\?id=(\d+)", listed.body):
            page = await self.browser.get(f"{self.members}/one?id={wire_id}")
            if self.email in page.text:
                return page
        raise AssertionError(f"{self.email} is no member: {listed.text}")

    async def use(self, link: str, password: str) -> int:
        """The status of an attempt to choose a password."""
        async with self.open() as browser:
            page = await browser.get("/password")
            chosen = {"link": link, "password": password, "repeated": password}
            return (await browser.submit(page, "/password", **chosen)).status

    async def list_passwords(self) -> list[str]:
        """Those of the passwords with which the person comes in."""
        found = []
        for password in (OLD, FIRST, SECOND):
            async with self.open() as browser:
                if (await browser.sign_in(self.email, password)).status == 303:
                    found.append(password)
        return found

    def read_user(self) -> dict[str, Any]:
        """The person's object, of which there is one."""
        listed = json.loads(self.world.run.kubectl("get", "gatewayusers", "-o", "json"))
        (user,) = [each for each in listed["items"] if each["spec"]["email"] == self.email]
        return user

    async def outlive(self, call: Awaitable[Any]) -> None:
        """Make a call in which the API is killed, and start it again."""
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await call
        await wait_for(lambda: not self.world.is_alive("api"), what="death of the API")
        self.world.run.restart("api", {})


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kill", range(share(KILLS_A_STEP)))
@pytest.mark.parametrize("is_member", [False, True], ids=["invitation", "recovery"])
@pytest.mark.parametrize("step", choose("api", PASSWORD_LINKS))
async def test_api_killed_at_a_step_of_a_link_loses_none_and_lets_each_be_used_once(
    world, payer, tally, step, is_member, kill
):
    noun = "recovery" if is_member else "invitation"
    told = tally("F1", f"api killed {step}, in a link of {noun}")
    scene = Scene(world, payer.account, is_member=is_member)
    async with scene.browser:
        await scene.enter()
        world.restart_doomed("api", {"GATEWAY_FAILPOINTS": step})
        async with told.trial(payer):
            await check_link(scene, step)
    told.check()


async def check_link(scene: Scene, step: str) -> None:
    """Make a link and use it, with the kill at the step; check that one password was set, once."""
    if step in LINK_STEPS:
        await scene.outlive(scene.make_link())
    link = await scene.make_link()
    if scene.is_member:
        assert await scene.list_passwords() == [OLD]
    is_set = step in ("after-password", "after-password-session")
    if step not in LINK_STEPS:
        await scene.outlive(scene.use(link, FIRST))
        assert ("passwordLink" in scene.read_user()["spec"]) is not is_set
    statuses = await asyncio.gather(scene.use(link, FIRST), scene.use(link, SECOND))
    assert sorted(statuses) == ([403, 403] if is_set else [303, 403])
    chosen = SECOND if statuses[1] == 303 else FIRST
    assert await scene.list_passwords() == [chosen]
    assert await scene.use(link, "a third horse battery") == 403
    assert await scene.list_passwords() == [chosen]
    user = scene.read_user()
    assert "passwordLink" not in user["spec"]
    assert len(user["spec"]["memberships"]) == 1
    noted = json.loads(user["metadata"]["annotations"]["modelgateway.dev/changes"])
    assert [row[2] for row in noted].count("password chosen by a link") == 1
