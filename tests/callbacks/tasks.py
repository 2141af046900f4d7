"""Tasks whose end is called back."""

import asyncio

from tests.servers.tenants import unique
from tests.servers.world import read_task, wait_for


def callback_of(world, task):
    return read_task(world, task)["status"].get("callback") or {}


async def wait_state(world, task, state, *, seconds=30):
    """Waits until the task is settled with its callback in `state`; its object."""

    async def look():
        obj = await asyncio.to_thread(read_task, world, task)
        status = obj.get("status") or {}
        settled = status.get("work") == "Settled"
        return obj if settled and status["callback"]["state"] == state else None

    return await wait_for(look, seconds=seconds, what=f"{task} {state}")


async def run_task(client, url, **changes):
    """A task with a callback; its id and what GET tells of its end."""
    task = await client.create_surely(unique("cb"), callback_url=url, duration_seconds=3, **changes)
    return task, (await client.wait_terminal([task]))[task]
