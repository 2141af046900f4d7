"""Models and providers come and go with kubectl, and narrow what is taken (contract §2.1)."""

from tests.servers.tenants import describe, describe_model, unique, wait_status
from tests.servers.world import wait_for


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
