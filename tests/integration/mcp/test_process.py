"""The MCP process as attackers meet it: tokens and bodies."""

import asyncio

import aiohttp
import pytest

from tests.servers.mcp import McpCaller, describe_task
from tests.servers.world import wait_for


@pytest.fixture
def url(world):
    return world.env["GATEWAY_MCP_URL"]


async def test_deleted_grant_ends_its_token_within_five_seconds(
    world, client, person, browser, url
):
    tokens = await client.authorize(browser, person.accounts[0])
    async with McpCaller(url, tokens["access_token"]) as caller:
        assert (await caller.send("ping"))[0] == 200
        assert (await caller.use("check_balance", {}))["balance_cents"] is not None
        grant = (await client.verify(tokens["access_token"])).principal.key.name
        world.run.kubectl("delete", "gatewaygrant", grant)

        async def is_refused():
            return (await caller.send("ping"))[0] == 401

        await wait_for(is_refused, seconds=5)


async def test_token_of_one_account_sees_nothing_of_another(
    world, client, person, browser, other, url
):
    async with McpCaller(url, other.key) as owner:
        made = await owner.use("create_task", describe_task(world, "foreign", wait=False))
    tokens = await client.authorize(browser, person.accounts[0])
    given = {
        "service": world.env["GATEWAY_SERVICE"],
        "action": "reference_to_video",
        "task_id": made["task_id"],
    }
    async with McpCaller(url, tokens["access_token"]) as stranger:
        _, message = await stranger.send("tools/call", {"name": "get_task", "arguments": given})
    assert message["result"] == {
        "content": [{"type": "text", "text": "Task not found."}],
        "isError": True,
    }


@pytest.mark.full
async def test_hostile_bodies_leave_the_process_small_and_quick(world, other, url):
    deep = b"[" * 1_000_000
    wide = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":[' + b"[]," * 1_300_000 + b"1]}}"
    keys = b"{" + b",".join(b'"%d":{}' % n for n in range(300_000)) + b"}"
    pid = world.run.pid_of("mcp")
    before = read_rss(pid)
    headers = {
        "Authorization": f"Bearer {other.key}",
        "Accept": "*/*",
        "Content-Type": "application/json",
    }
    async with aiohttp.ClientSession(headers=headers) as session:

        async def post(body):
            async with session.post(f"{url}/mcp", data=body) as answer:
                return answer.status

        for body, allowed in ((deep, {400}), (wide, {200}), (keys, {400})):
            statuses = await asyncio.gather(*(post(body) for _ in range(8)))
            assert set(statuses) <= allowed | {503}
        big = b"x" * (4 * 1024 * 1024 + 1)
        assert await post(big) == 413
    assert read_rss(pid) - before < 150 * 1024
    async with McpCaller(url, other.key) as caller:
        assert (await caller.send("ping"))[0] == 200


def read_rss(pid):
    """KiB."""
    with open(f"/proc/{pid}/status") as status:
        (line,) = [line for line in status if line.startswith("VmRSS")]
    return int(line.split()[1])
