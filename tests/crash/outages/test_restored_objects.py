"""Objects restored without their status, as `kubectl get -o yaml | kubectl create` does it."""

import secrets

import pytest

from tests.servers.receivers import Receiver, check_one_event
from tests.servers.tenants import open_tenant, read_balance
from tests.servers.world import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KEPT = ("name", "labels", "annotations", "finalizers")


def restore(world, *names):
    """Deletes tasks and makes them again from what kubectl has shown of them."""
    objects = [world.read("gatewaytask", name) for name in names]
    for obj in objects:
        obj["metadata"] = {key: obj["metadata"][key] for key in KEPT if key in obj["metadata"]}
        world.run.kubectl("delete", "gatewaytask", obj["metadata"]["name"])
    for obj in objects:
        del obj["status"]
    world.apply(*objects, command="create")


async def test_restored_task_is_neither_run_nor_charged_nor_called_back_again(world):
    secret = world.read("gatewayaccount", "demo")["spec"]["webhookSecretRef"]
    async with open_tenant(world, webhookSecretRef=secret) as client, Receiver() as receiver:
        await client.simulate({"behaviour": "seconds", "seconds": "0.2"})
        tasks = [
            await client.create_surely(
                f"restored-{secrets.token_hex(4)}", duration_seconds=3, callback_url=url
            )
            for url in (receiver.locate("done"), None)
        ]
        names = [task.replace("_", "-", 1) for task in tasks]
        bodies = await client.wait_terminal(tasks)

        def are_closed():
            metas = [world.read("gatewaytask", name)["metadata"] for name in names]
            return not any(meta.get("finalizers") for meta in metas)

        await wait_for(are_closed, what="the end of both", seconds=60)
        balance = await read_balance(client)
        jobs = (await client.read_simulator("/control/jobs"))["jobs"]

        for is_restarted in (False, True):
            restore(world, *names)
            if is_restarted:
                world.run.restart("operator", {})

            def have_ended():
                objects = [world.read("gatewaytask", name) for name in names]
                return all(obj.get("status", {}).get("phase") == "Completed" for obj in objects)

            await wait_for(have_ended, what="the status of both", seconds=60)
            await wait_for(are_closed, what="the end of both", seconds=60)
            for task in tasks:
                assert (await client.poll(task)).body == bodies[task]
            assert await read_balance(client) == balance
        world.run.kill("redis")
        world.run.restart("redis")

        async def is_rebuilt():
            return (await client.request("GET", "/api/v1/me/balance")).status == 200

        await wait_for(is_rebuilt, what="the balance", seconds=60)
        assert await read_balance(client) == balance
        assert (await client.read_simulator("/control/jobs"))["jobs"] == jobs
        check_one_event(receiver.of(tasks[0]), tasks[0], bodies[tasks[0]])
        assert len(receiver.arrivals) == 1
