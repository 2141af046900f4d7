"""Roles and declared keys with real processes: a change is felt within 5 s (§0.10, §9.2)."""

from tests.servers.tenants import (
    describe_declared_key,
    describe_user,
    make_key,
    read_declared,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import wait_for


async def test_key_acts_with_the_present_role_of_its_creator(world, client):
    user = unique("mia")
    world.apply(describe_user(user, {client.account: "member"}))
    key = make_key(world, client.account, createdBy=user).plaintext
    me = await wait_status(client, 200, key=key)
    assert me.body["email"] == f"{user}@example.com"
    assert 0 < me.body["id"] < 2**53
    body = client.body(duration_seconds=3)
    created = await client.request("POST", client.tasks_path, body=body, key=key)
    assert created.status == 202

    world.patch("gatewayuser", user, {"memberships": [membership(client, "viewer")]})
    refused = await wait_status(client, 403, client.tasks_path, method="POST", body=body, key=key)
    assert set(refused.body) == {"error"}
    path = f"{client.tasks_path}/{created.body['id']}"
    assert (await client.request("GET", path, key=key)).status == 200

    world.patch("gatewayuser", user, {"memberships": []})
    await wait_status(client, 401, key=key)

    world.patch("gatewayuser", user, {"memberships": [membership(client, "owner")]})
    await wait_known(client, key)
    # the client's own key was made by nobody: it shows the account's owner
    assert (await client.request("GET", "/api/v1/me")).body["email"] == f"{user}@example.com"
    world.run.kubectl("delete", "gatewayuser", user, "--wait=false")
    await wait_status(client, 401, key=key)


def membership(client, role):
    return {"accountName": client.account, "role": role}


async def test_declared_key_is_written_into_its_secret_and_opens(world, client):
    secret = unique("declared")
    obj = describe_declared_key(client.account, secret, overlapSeconds=600)
    name = obj["metadata"]["name"]
    world.apply(obj)
    first = await read_declared(world, secret)
    await wait_known(client, first)
    me = (await client.request("GET", "/api/v1/me", key=first)).body
    assert me["email"] == "olga@example.com"
    answer = await client.request(
        "POST", client.tasks_path, body=client.body(duration_seconds=3), key=first
    )
    assert answer.status == 202
    meta = world.read("secret", secret)["metadata"]
    assert meta["labels"]["modelgateway.dev/key"] == name
    assert [owner["name"] for owner in meta["ownerReferences"]] == [name]
    await wait_for(lambda: find_ready(world, name) == "Available", what="Ready")

    world.patch("gatewaykey", name, {"rotations": 1})
    second = await read_declared(world, secret, but=first)
    await wait_known(client, second)
    assert (await client.request("GET", "/api/v1/me", key=first)).status == 200

    world.patch("gatewaykey", name, {"rotations": 2, "overlapSeconds": 0})
    third = await read_declared(world, secret, but=second)
    await wait_known(client, third)
    for old in (first, second):
        assert (await client.request("GET", "/api/v1/me", key=old)).status == 401

    world.patch("gatewaykey", name, {"revoked": True})
    await wait_status(client, 401, key=third)
    await wait_for(lambda: "tokens" not in world.read("gatewaykey", name)["status"])


def find_ready(world, name):
    conditions = world.read("gatewaykey", name).get("status", {}).get("conditions", [])
    return next((c["reason"] for c in conditions if c["type"] == "Ready"), None)
