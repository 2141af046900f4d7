"""Code adapters in a real operator: the guide's example runs tasks, odd ones harm nobody (I2)."""

import json

import pytest

from tests.servers.guide import install, install_example
from tests.servers.providers import OperationsProvider
from tests.servers.tenants import describe, describe_model, wait_status
from tests.servers.world import World, read_task, wait_for


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    install_example(folder)
    install(folder, "torn_adapter", "raise RuntimeError('no')", torn="Torn")
    return folder


@pytest.fixture(scope="module")
def server():
    with OperationsProvider(signed=True) as running:
        yield running


@pytest.fixture(scope="module")
def world(packages, control_plane):
    with World(control_plane, extra_env={"operator": {"PYTHONPATH": str(packages)}}) as running:
        yield running


@pytest.fixture(scope="module")
def providers(world, server):
    """One provider and model a type: the example, and those that cannot be used."""
    config = json.dumps({"url": server.url, "outputHosts": ["localhost"]})
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "signed"},
        "stringData": {"key": server.token},
    }
    ref = {"name": "signed", "key": "key"}
    specs = {
        "signed": {"type": "signed", "credentialsSecretRef": ref, "config": config},
        "wrong-config": {"type": "signed", "credentialsSecretRef": ref, "config": "{}"},
        "missing": {"type": "nobodys"},
        "torn": {"type": "torn"},
    }
    objects = [secret]
    for name, spec in specs.items():
        route = {"name": "main", "providerName": name, "upstreamModel": "film/wide-2"}
        objects += [describe("Provider", name, spec), describe_model(world, name, routes=[route])]
    world.apply(*objects)


def at_model(world, name):
    own = world.client()
    own.service = own.model = name
    return own


async def start_task(client, key):
    """A task of the client's model, once the API knows that."""
    body = {"model": client.model}
    await wait_status(client, 400, client.tasks_path, method="POST", body=body, seconds=20)
    return await client.create_surely(key, duration_seconds=3)


async def wait_ready(world, name, status, reason, text, seconds=45):
    def read():
        conditions = world.read("gatewayprovider", name).get("status", {}).get("conditions", [])
        ready = next((c for c in conditions if c["type"] == "Ready"), {})
        is_so = (ready.get("status"), ready.get("reason")) == (status, reason)
        return is_so and text in ready["message"]

    await wait_for(read, seconds=seconds, what=f"{name} {status} {reason}: {text}")


async def test_unusable_adapters_report_the_reason(world, providers, server):
    await wait_ready(world, "signed", "True", "NotTested", "not tested")
    text = "config: must be a JSON object with a url"
    await wait_ready(world, "wrong-config", "False", "InvalidField", text)
    await wait_ready(
        world, "missing", "False", "AdapterNotFound", "'nobodys'; there is http, signed"
    )
    await wait_ready(world, "torn", "False", "AdapterFailed", "raised RuntimeError at torn_adapter")


async def test_tasks_run_through_code_while_another_is_missing(world, providers, server):
    async with at_model(world, "torn") as torn, at_model(world, "missing") as missing:
        waiting = [await start_task(torn, "torn"), await start_task(missing, "missing")]
        async with at_model(world, "signed") as client:
            server.misbehave("submit", "cut", after=True)
            tasks = [await start_task(client, f"signed-{number}") for number in range(3)]
            bodies = await client.wait_terminal(tasks, seconds=90)
            assert {body["status"] for body in bodies.values()} == {"completed"}
            for task in tasks:
                uid = read_task(world, task)["metadata"]["uid"]
                assert len(server.made(uid)) == 1, "I2"
        assert world.is_alive("operator")
        for client, task in zip((torn, missing), waiting, strict=True):
            assert (await client.poll(task)).body["status"] == "processing"
    assert server.token not in world.log("operator")
