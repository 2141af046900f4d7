"""Models and providers come and go with kubectl, and narrow what is taken (contract §2.1)."""

import pytest

from gateway_cli.cluster.errors import ClusterError
from tests.servers.tenants import describe, describe_model, unique, wait_status
from tests.servers.world import wait_for


async def test_default_that_the_model_does_not_take_is_409_where_it_has_no_own(world, client):
    """The operation's default is what is asked for; the model says no, and how it must be told."""
    name = unique("defaultless")
    rule = {"name": "aspect_ratio", "allowed": ["1:1"]}
    world.apply(describe_model(world, name, fields=[rule]))

    def is_judged():
        conditions = world.read("gatewaymodel", name).get("status", {}).get("conditions", [])
        return conditions and conditions[0]

    ready = await wait_for(is_judged, what="a condition")
    # a model whose own defaults it refuses is no model: an admin is told, no client is
    assert (ready["status"], ready["reason"]) == ("False", "InvalidField")
    assert "aspect_ratio" in ready["message"]
    path = f"/api/v1/{name}/reference_to_video"
    assert (await client.request("POST", path, body=client.body(model=name))).status == 404
    world.run.kubectl("delete", "gatewaymodel", name)


async def test_provider_and_model_of_kubectl_serve_within_seconds_and_leave_again(world, client):
    name = unique("second")
    provider = world.read("gatewayprovider", "simulated")["spec"]
    route = {"name": "main", "providerName": name, "upstreamModel": "q9"}
    path = f"/api/v1/{name}/reference_to_video"
    assert (await client.request("POST", path, body=client.body(model=name))).status == 404
    world.apply(describe("Provider", name, provider), describe_model(world, name, routes=[route]))
    body = client.body(model=name, duration_seconds=3)
    answer = await wait_status(client, 202, path, method="POST", body=body)
    task = f"{path}/{answer.body['id']}"
    assert answer.headers["Location"] == task
    document = (await client.request("GET", "/openapi.json")).body
    assert {path, path + "/{task_id}"} <= set(document["paths"])

    async def is_completed():
        return (await client.request("GET", task)).body["status"] == "completed"

    await wait_for(is_completed, what="the end")
    obj = world.read("gatewaytask", answer.body["id"].replace("_", "-", 1))
    assert obj["status"]["upstream"]["providerName"] == name

    world.run.kubectl("delete", f"gatewaymodel/{name}", f"gatewayprovider/{name}")
    await wait_status(client, 404, path, method="POST", body=body)
    assert path not in (await client.request("GET", "/openapi.json")).body["paths"]
    # what it made can still be read, by its owner alone
    assert (await client.request("GET", task)).body["status"] == "completed"
    assert (await client.request("GET", task, key=None)).status == 404


async def test_disabled_model_is_as_one_that_is_not_there(world, client):
    name = unique("disabled")
    world.apply(describe_model(world, name))
    path = f"/api/v1/{name}/reference_to_video"
    await wait_status(client, 202, path, method="POST", body=client.body(model=name))
    world.patch("gatewaymodel", name, {"disabled": True})
    await wait_status(client, 404, path, method="POST", body=client.body(model=name))
    world.patch("gatewaymodel", name, {"disabled": False})
    await wait_status(client, 202, path, method="POST", body=client.body(model=name))
    world.run.kubectl("delete", "gatewaymodel", name)


@pytest.mark.parametrize("segment", ["me", "files", "management", "price_schedules"])
async def test_reserved_segment_is_refused_to_the_admin(world, segment):
    model = describe_model(world, unique("reserved"), service=segment)
    with pytest.raises(ClusterError) as refusal:
        world.apply(model)
    assert "service" in str(refusal.value)
