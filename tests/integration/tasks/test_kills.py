"""Each process is killed once with work under way: nothing is lost, doubled or mischarged.

Kills at named steps, and many of them, are in `tests/crash`.
"""

import asyncio
import collections
from collections.abc import Iterator

import aiohttp
import pytest

from tests.crash.history import check_money
from tests.crash.storage import PIECES, Uploading, check_video
from tests.servers.control_plane import ControlPlane
from tests.servers.mcp import McpCaller, describe_task
from tests.servers.receivers import Receiver, check_one_event
from tests.servers.tenants import list_objects, open_tenant, unique
from tests.servers.world import Client, World, wait_for

PROCESSES = ("operator", "api", "mcp", "media", "simulator", "redis")
TASKS = 3


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane) -> Iterator[World]:
    """A gateway of its own, whose processes are not restarted automatically."""
    with World(control_plane, mcp=True) as running:
        yield running


async def use_tool(world: World, client: Client) -> str:
    """The task of a tool call that waits for its end; a broken call is repeated under its key."""
    arguments = describe_task(world, unique("tool"))
    while True:
        try:
            async with McpCaller(world.env["GATEWAY_MCP_URL"], client.key) as caller:
                return str((await caller.use("create_task", arguments))["task_id"])
        except (aiohttp.ClientError, AssertionError):
            await asyncio.sleep(0.05)


async def list_jobs(client: Client) -> list[str]:
    """The tasks of the account's jobs at the provider, by their uid."""
    uids = {task["metadata"]["uid"] for task in list_objects(client)}
    jobs = (await client.read_simulator("/control/jobs"))["jobs"]
    return [job["client_reference"] for job in jobs if job["client_reference"] in uids]


@pytest.mark.parametrize("process", PROCESSES)
async def test_killed_process_loses_and_doubles_nothing(world: World, process: str) -> None:
    secret = world.read("gatewayaccount", "demo")["spec"]["webhookSecretRef"]
    async with (
        open_tenant(world, webhookSecretRef=secret, requestsPerMinute=1_000_000) as client,
        Receiver() as receiver,
    ):
        await client.simulate({"behaviour": "seconds", "seconds": "0.3-1"})
        creations = [
            asyncio.create_task(
                client.create_surely(
                    unique("killed"), duration_seconds=3, callback_url=receiver.locate(str(number))
                )
            )
            for number in range(TASKS)
        ]
        upload = asyncio.create_task(Uploading(client).upload())
        tool = asyncio.create_task(use_tool(world, client))
        await wait_for(lambda: list_jobs(client), what="a job")
        await asyncio.to_thread(world.run.kill, process)
        await asyncio.to_thread(world.run.restart, process)

        tasks = [*await asyncio.gather(*creations), await tool]
        ended = await client.wait_terminal(tasks)
        assert {body["status"] for body in ended.values()} == {"completed"}, ended
        counts = collections.Counter(await list_jobs(client))
        assert (len(counts), sum(counts.values())) == (TASKS + 1, TASKS + 1), "I2: one job each"
        file = (await upload)["file"]["id"]
        content = await client.request("GET", f"/v1/files/{file}/content")
        assert content.raw == b"".join(PIECES), "I9"
        for task in tasks:
            await check_video(client, task)
        for task in tasks[:TASKS]:
            await wait_for(lambda task=task: receiver.of(task), what="the callback")
            check_one_event(receiver.of(task), task, ended[task])
        await check_money(world, client, killed=True)
