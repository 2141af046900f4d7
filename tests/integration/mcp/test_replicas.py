"""Two API and two MCP processes behind a load balancer, one killed between any two steps."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.integration.oauth.flows import OAuthClient
from tests.servers.browser import Browser
from tests.servers.mcp import call_tool
from tests.servers.proxy import Balancer
from tests.servers.replica import Replica
from tests.servers.tenants import unique
from tests.servers.world import wait_for

pytestmark = pytest.mark.full

START_SECONDS = 60


class Pair:
    """Two replicas of a process, of which one is killed at a time."""

    def __init__(self, balancer, *replicas):
        self.url = balancer.base_url
        self._balancer = balancer
        self._order = replicas

    async def serve(self):
        """Start both, and wait until they get connections."""
        for each in self._order:
            each.start()
            self._balancer.add(each.port, each.health_port)
        for each in self._order:
            await self._wait_serving(each, True)

    def kill_all(self):
        """Kill what still runs."""
        for each in self._order:
            if each.is_alive():
                each.kill()

    async def kill_next(self):
        """Kill the replica that has served, once the other one does, and have it start anew."""
        killed, other = self._order
        await self._wait_serving(other, True)
        killed.kill()
        await self._wait_serving(killed, False)
        killed.start()
        self._order = other, killed

    async def _wait_serving(self, replica, wanted):
        def is_so():
            return self._balancer.is_serving(replica.port) is wanted

        await wait_for(is_so, seconds=START_SECONDS, what=f"{replica.name} serving: {wanted}")


@asynccontextmanager
async def run_pairs(world):
    """The pairs of API and MCP processes; all of them know both addresses."""
    async with AsyncExitStack() as stack:
        fronts = [stack.enter_context(Balancer(lag=0)) for _ in range(2)]
        urls = [front.base_url for front in fronts]
        env = dict(zip(("GATEWAY_BASE_URL", "GATEWAY_MCP_URL"), urls, strict=True))
        # sign-ins and registrations of other tests count too: all come from one address
        own = {**world.config.extra_env["api"], **env}
        api = Pair(fronts[0], *(Replica(world, "api", **own) for _ in range(2)))
        mcp = Pair(fronts[1], *(Replica(world, "mcp", **env) for _ in range(2)))
        stack.callback(api.kill_all)
        stack.callback(mcp.kill_all)
        await asyncio.gather(api.serve(), mcp.serve())
        yield api, mcp


@pytest.mark.timeout(300)
async def test_flow_survives_a_kill_between_any_two_steps(world, person):
    account = person.accounts[0]
    async with run_pairs(world) as (api, mcp), OAuthClient(world) as client:
        client.base, client.resource = api.url, mcp.url
        await client.register()
        await api.kill_next()
        async with Browser(api.url) as browser:
            path = client.locate()
            page = await browser.sign_in(person.email, person.password, after=path)
            assert page.status == 303, page.text
            await api.kill_next()
            page = await browser.follow(await browser.get(path))
            page = await browser.submit(page, "/oauth/authorize", account=account)
            await api.kill_next()
            page = await browser.submit(page, "/oauth/authorize", button="approve")
        await api.kill_next()
        status, tokens = await client.exchange(page.parameters["code"])
        assert status == 200, tokens
        assert await call_tool(mcp.url, tokens["access_token"], "check_balance", {})
        await asyncio.gather(api.kill_next(), mcp.kill_next())
        tokens = await client.refresh(tokens["refresh_token"])

        task = {
            "service": world.env["GATEWAY_SERVICE"],
            "action": "reference_to_video",
            "model": world.env["GATEWAY_MODEL"],
            "idempotency_key": unique("replicas"),
            "params": {
                "prompt": "A lighthouse",
                "reference_image_urls": ["https://example.com/lighthouse.png"],
            },
        }
        token = tokens["access_token"]
        made = await call_tool(mcp.url, token, "create_task", {**task, "wait": False})
        await asyncio.gather(api.kill_next(), mcp.kill_next())
        again = await call_tool(mcp.url, token, "create_task", task)
        assert (again["task_id"], again["status"]) == (made["task_id"], "completed")
        await mcp.kill_next()
        found = {name: task[name] for name in ("service", "action")}
        found = await call_tool(mcp.url, token, "get_task", {**found, "task_id": made["task_id"]})
        assert found["status"] == "completed"

        await client.revoke(tokens["refresh_token"])
        await api.kill_next()

        async def is_refused():
            return await call_tool(mcp.url, token, "check_balance", {}) == 401

        await wait_for(is_refused, seconds=5, what="the revocation everywhere")
        assert await client.refresh_error(tokens["refresh_token"]) == (400, "invalid_grant")
