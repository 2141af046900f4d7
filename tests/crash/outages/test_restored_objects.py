"""Objects restored without their status, as `kubectl get -o yaml | kubectl create` does it."""

import pytest

from tests.servers.receivers import Receiver, check_one_event
from tests.servers.tenants import open_tenant, read_balance
from tests.servers.world import list_tasks, wait_for
from tests.shares import share

pytestmark = [pytest.mark.timeout(240)]

TASKS = 40
KEPT = ("name", "labels", "annotations", "finalizers")


def restore(world, tasks):
    """Deletes tasks and makes them again from what kubectl has shown of them."""
    listed = list_tasks(world)
    objects = [listed[task] for task in tasks]
    for obj in objects:
        obj["metadata"] = {key: obj["metadata"][key] for key in KEPT if key in obj["metadata"]}
        del obj["status"]
    world.run.kubectl("delete", "gatewaytasks", *(obj["metadata"]["name"] for obj in objects))
    world.apply(*objects, command="create")


async def test_restored_task_is_neither_run_nor_charged_nor_called_back_again(world, tally):
    told = tally("F26", "ended tasks restored without their status, operator running or restarted")
    secret = world.read("gatewayaccount", "demo")["spec"]["webhookSecretRef"]
    async with open_tenant(world, webhookSecretRef=secret) as client, Receiver() as receiver:
        await client.simulate({"behaviour": "seconds", "seconds": "0.2"})
        urls = [
            (receiver.locate(f"done-{number}"), None)[number % 2] for number in range(share(TASKS))
        ]
        tasks = [
            await client.create_surely(f"restored-{number}", duration_seconds=3, callback_url=url)
            for number, url in enumerate(urls)
        ]
        bodies = await client.wait_terminal(tasks)

        def are_closed():
            listed = list_tasks(world)
            return not any(listed[task]["metadata"].get("finalizers") for task in tasks)

        await wait_for(are_closed, what="the end of all", seconds=60)
        balance = await read_balance(client)
        jobs = (await client.read_simulator("/control/jobs"))["jobs"]

        for is_restarted in (False, True):
            restore(world, tasks)
            if is_restarted:
                world.run.restart("operator", {})

            def have_ended():
                listed = list_tasks(world)
                phases = {listed[task].get("status", {}).get("phase") for task in tasks}
                return phases == {"Completed"}

            async with told.trial(client, count=len(tasks)):
                await wait_for(have_ended, what="the status of all", seconds=60)
                await wait_for(are_closed, what="the end of all", seconds=60)
                for task in tasks:
                    assert (await client.poll(task)).body == bodies[task]
                assert await read_balance(client) == balance
        world.run.kill("redis")
        world.run.restart("redis")

        async def is_rebuilt():
            return (await client.request("GET", "/api/v1/me/balance")).status == 200

        async with told.trial(client, count=0):
            await wait_for(is_rebuilt, what="the balance", seconds=60)
            assert await read_balance(client) == balance
            assert (await client.read_simulator("/control/jobs"))["jobs"] == jobs
            for task, url in zip(tasks, urls, strict=True):
                if url is not None:
                    check_one_event(receiver.of(task), task, bodies[task])
            assert len(receiver.arrivals) == len(tasks) - urls.count(None)
    told.check()
