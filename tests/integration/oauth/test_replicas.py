"""The flow over two replicas, with restarts of the API and losses of Redis between its steps."""

import asyncio
from contextlib import asynccontextmanager
from itertools import cycle

import pytest
from redis.asyncio import Redis

from gateway_core.api.errors import Unauthenticated
from tests.integration.oauth.flows import OAuthClient
from tests.servers.browser import Browser
from tests.servers.replica import Replica
from tests.servers.world import wait_for

pytestmark = pytest.mark.full


class Alternating:
    """Sends each request to the next replica. Mixed into what sends requests."""

    turns = None

    def turn(self, url):
        return url.replace(self.base, next(self.turns), 1) if self.turns else url


class AlternatingClient(Alternating, OAuthClient):
    async def post(self, path, **given):
        async with self._session.post(self.turn(self.base + path), **given) as answer:
            raw = await answer.read()
            return answer.status, (await answer.json()) if raw else None


class AlternatingBrowser(Alternating, Browser):
    async def _exchange(self, method, url, fields, headers):
        return await super()._exchange(method, self.turn(url), fields, headers)


@pytest.fixture(scope="module")
def second(world):
    """Another API process of the same gateway."""
    same = {name: world.env[name] for name in ("GATEWAY_BASE_URL", "GATEWAY_MCP_URL")}
    limits = world.config.extra_env["api"]
    with Replica(world, "api", **same, **limits) as replica:
        yield replica


async def flush(world):
    redis = Redis(port=world.config.ports.redis)
    try:
        await redis.flushall()
    finally:
        await redis.aclose()


async def reach_choice(client, browser, person, page):
    """The page where an account is chosen, after a sign-in if one is asked for."""
    page = await browser.follow(page)
    if page.url.partition("?")[0].endswith("/sign-in"):
        page = await browser.submit(page, "/sign-in", email=person.email, password=person.password)
        page = await browser.follow(page)
    return page


@asynccontextmanager
async def open_alternating(world, second, first):
    own = world.env["GATEWAY_BASE_URL"]
    bases = [own, second.base_url][:: 1 if first == 0 else -1]
    async with AlternatingClient(world) as client, AlternatingBrowser(own) as browser:
        client.turns = browser.turns = cycle(bases)
        yield client, browser


@pytest.mark.parametrize("first", [0, 1])
async def test_each_step_may_meet_another_replica(world, second, person, first):
    account = person.accounts[0]
    async with open_alternating(world, second, first) as (client, browser):
        await client.register()
        for _ in range(2):
            choice = await reach_choice(client, browser, person, await browser.get(client.locate()))
            page = await browser.submit(choice, "/oauth/authorize", account=account)
            if page.location is None:
                page = await browser.submit(page, "/oauth/authorize", button="approve")
            status, tokens = await client.exchange(page.parameters["code"])
            assert status == 200, tokens
            spent = tokens
            for _ in range(3):
                # both replicas, at once: the same successor
                form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
                answers = await asyncio.gather(*(client.ask_token(**form) for _ in range(6)))
                assert {status for status, _ in answers} == {200}, answers
                tokens = answers[0][1]
                for name in ("access_token", "refresh_token"):
                    assert {answer[name] for _, answer in answers} == {tokens[name]}
                caller = await client.verify(tokens["access_token"])
                assert caller.principal.account.name == account
        assert await client.refresh_error(spent["refresh_token"]) == (400, "invalid_grant")
        assert await client.refresh_error(tokens["refresh_token"]) == (400, "invalid_grant")


@pytest.mark.parametrize("first", [0, 1])
async def test_code_is_redeemed_once_among_replicas(world, second, person, first):
    account = person.accounts[0]
    async with open_alternating(world, second, first) as (client, browser):
        await client.register()
        choice = await reach_choice(client, browser, person, await browser.get(client.locate()))
        page = await browser.submit(choice, "/oauth/authorize", account=account)
        page = await browser.submit(page, "/oauth/authorize", button="approve")
        status, tokens = await client.exchange(page.parameters["code"])
        assert status == 200
        assert (await client.exchange(page.parameters["code"]))[0] == 400
        with pytest.raises(Unauthenticated):
            await client.verify(tokens["access_token"])


async def test_revocation_at_one_replica_counts_at_the_other(world, second, person):
    account = person.accounts[0]
    async with open_alternating(world, second, 0) as (client, browser):
        await client.register(client_name="To be revoked")
        choice = await reach_choice(client, browser, person, await browser.get(client.locate()))
        page = await browser.submit(choice, "/oauth/authorize", account=account)
        page = await browser.submit(page, "/oauth/authorize", button="approve")
        _, tokens = await client.exchange(page.parameters["code"])
        grant = (await client.verify(tokens["access_token"])).principal.key.name

        async def is_shown():
            # two requests: one of each replica
            shown = [await browser.get("/settings") for _ in range(2)]
            return all(grant in page.body for page in shown) and shown

        pages = await wait_for(is_shown)
        form = next(form for form in pages[0].forms if form.fields.get("grant") == grant)
        assert (await browser.post(form.action, form.fields)).status == 303
        assert await client.refresh_error(tokens["refresh_token"]) == (400, "invalid_grant")


@pytest.mark.timeout(240)
async def test_redis_may_be_lost_between_any_two_steps(world, client, person):
    async with Browser(client.base) as browser:
        page = await browser.follow(await browser.get(client.locate()))
        await flush(world)
        choice = await reach_choice(client, browser, person, page)
        await flush(world)
        page = await browser.submit(choice, "/oauth/authorize", account=person.accounts[0])
        choice = await reach_choice(client, browser, person, page)
        consent = await browser.submit(choice, "/oauth/authorize", account=person.accounts[0])
        await flush(world)
        page = await browser.submit(consent, "/oauth/authorize", button="approve")
        choice = await reach_choice(client, browser, person, page)
        consent = await browser.submit(choice, "/oauth/authorize", account=person.accounts[0])
        page = await browser.submit(consent, "/oauth/authorize", button="approve")
        await flush(world)
        status, answer = await client.exchange(page.parameters["code"])
        assert (status, answer["error"]) == (400, "invalid_grant")

        choice = await reach_choice(client, browser, person, await browser.get(client.locate()))
        consent = await browser.submit(choice, "/oauth/authorize", account=person.accounts[0])
        page = await browser.submit(consent, "/oauth/authorize", button="approve")
        _, tokens = await client.exchange(page.parameters["code"])
        await flush(world)
        second = await client.refresh(tokens["refresh_token"])
        await flush(world)
        await client.verify(second["access_token"])
        second = await client.refresh(second["refresh_token"])
        await flush(world)
        # a reuse is told from the grant alone
        assert await client.refresh_error(tokens["refresh_token"]) == (400, "invalid_grant")
        assert await client.refresh_error(second["refresh_token"]) == (400, "invalid_grant")
