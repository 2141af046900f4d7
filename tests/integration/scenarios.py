"""Scenarios that take long: they run beside the other tests, and a test checks what came of each.

Each scenario is a coroutine function on a World; the fixtures of `conftest` start those that a test
asks for as soon as the world is up.
"""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.faults.machine import Stopwatch
from tests.servers.replica import run_linked_api
from tests.servers.tenants import (
    describe,
    describe_model,
    list_objects,
    open_tenant,
    read_balance,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import World, wait_for

Told = dict[str, Any]


class Scenario:
    """A coroutine in a thread of its own."""

    def __init__(self, live: Callable[[World], Awaitable[Told]], world: World) -> None:
        self._loop = asyncio.new_event_loop()
        self._work = self._loop.create_task(self._run(live, world))
        self._told: Told | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name=live.__name__)
        self._thread.start()

    def wait(self, seconds: float = 110) -> None:
        """Wait for its end, whatever it came to."""
        self._thread.join(seconds)

    async def hear(self, seconds: float = 110) -> Told:
        """What it came to; waits for its end."""
        await asyncio.to_thread(self.wait, seconds)
        if self._error is not None:
            raise self._error
        assert self._told is not None, "the scenario takes too long"
        return self._told

    def end(self) -> None:
        """Cuts it short."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._work.cancel)
            self._thread.join()

    async def _run(self, live: Callable[[World], Awaitable[Told]], world: World) -> None:
        self._told = await live(world)

    def _live(self) -> None:
        try:
            self._loop.run_until_complete(self._work)
        except BaseException as error:  # told to whoever asks
            self._error = error
        finally:
            self._loop.close()


async def wait_out_a_refusal(world: World) -> Told:
    """A burst, its refusal, one more call too early, and one right after `Retry-After`."""
    async with open_tenant(world, requestsPerMinute=5) as client:

        async def call() -> Any:
            headers = {"Content-Type": "application/json"}
            return await client.request("POST", client.tasks_path, headers=headers, data=b"{")

        began = time.monotonic()
        burst = [(await call()).status for _ in range(5)]
        refused = await call()
        spent = time.monotonic() - began
        wait = int(refused.headers["Retry-After"])
        due = time.monotonic() + wait
        await asyncio.sleep(due - 20 - time.monotonic())
        early = await call()
        await asyncio.sleep(due - time.monotonic())
        after = await call()
        statuses = {"refused": refused.status, "early": early.status, "after": after.status}
        return {"burst": burst, "spent": spent, "wait": wait, **statuses}


async def delete_with_the_provider_down(world: World) -> Told:
    """A task whose provider takes its job and is gone when the task is deleted."""

    async def run_jobs(request: web.Request) -> web.Response:
        return web.json_response({"job": {"id": "job_endless", "state": "rendering"}})

    app = web.Application()
    app.router.add_route("*", "/v1/{rest:.*}", run_jobs)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]

    name = unique("gone")
    provider = world.read("gatewayprovider", "simulated")["spec"]
    provider["http"]["baseUrl"] = f"http://127.0.0.1:{port}"
    route = {"name": "main", "providerName": name, "upstreamModel": "q4"}
    world.apply(describe("Provider", name, provider), describe_model(world, name, routes=[route]))
    path = f"/api/v1/{name}/reference_to_video"
    async with open_tenant(world) as client:
        body = client.body(model=name)
        accepted = await wait_status(client, 202, path, method="POST", body=body)
        task = accepted.body["id"].replace("_", "-", 1)
        running = "--for=jsonpath={.status.phase}=Running"
        await asyncio.to_thread(world.run.kubectl, "wait", running, f"gatewaytask/{task}")
        await runner.cleanup()
        with Stopwatch() as timed:
            command = ("delete", "gatewaytask", task, "--timeout=80s")
            await asyncio.to_thread(world.run.kubectl, *command)

        async def find_end() -> Told | None:
            shown: Told = (await client.request("GET", f"{path}/{accepted.body['id']}")).body
            return None if shown["status"] == "processing" else shown

        shown = await wait_for(find_end, what="the end")
        selector = f"--field-selector=involvedObject.name={task}"
        events = json.loads(world.run.kubectl("get", "events", selector, "-o", "json"))["items"]
        balance = await read_balance(client)
    world.run.kubectl("delete", f"gatewaymodel/{name}", f"gatewayprovider/{name}")
    return {"timed": timed, "shown": shown, "events": events, "balance": balance}


async def create_without_acknowledgement(world: World) -> Told:
    """A create that the API server hears and never acknowledges, and its retry elsewhere."""
    with run_linked_api(world) as (base, link):
        async with open_tenant(world) as client:
            await wait_known(client, base=base)
            # an object is the only thing of that size that the API sends
            link.mute_after(4096)
            call: dict[str, Any] = {"idempotency_key": "unclear", "prompt": "a" * 6000}
            with Stopwatch() as timed:
                answer = await client.create(base=base, **call)
            again = await client.create(**call)
            objects = list_objects(client)
            ended = await client.wait_terminal([again.body["id"]])
    states = [body["status"] for body in ended.values()]
    told = {"answer": answer, "again": again, "count": len(objects), "ended": states}
    return {"timed": timed, **told}
