"""No secret is in a log, a resource, an event or the store, whatever callers and providers do.

The fixture of the folder looks once more when all its tests have run.
"""

from tests.servers.leaks import find_leaks, list_secrets
from tests.servers.tenants import describe_task, make_key, unique, wait_status
from tests.servers.world import wait_for


async def test_secrets_of_careless_callers_and_a_chatty_provider_leak_nowhere(
    world, client, simulate
):
    token = world.run.credentials.provider_token
    key = client.key
    careless = [
        {"path": f"/api/v1/me?key={key}", "key": None},
        {"path": f"/v1/models?key={key}", "key": None},
        {"path": f"/none?api_key={key}"},
        {"path": "/v1beta/models", "headers": {"x-goog-api-key": key}, "key": None},
        {"path": "/api/v1/me", "headers": {"Authorization": f"Basic {key}"}},
        {"path": "/api/v1/me", "headers": {"Authorization": f"Bearer  {key}"}},
        {"path": "/api/v1/me", "headers": {"X-Api-Key": key, "Cookie": f"key={key}"}},
        {"path": "/api/v1/me", "headers": {"X-Client-Request-Id": key}},
        {"path": "/api/v1/me", "headers": {"X-Client-Request-Id": f"Bearer:{key}"}},
        {"path": "/api/v1/me", "headers": {"traceparent": key, "tracestate": f"k={key}"}},
        {"path": f"/{key}", "key": None},
        {"path": f"/api/v1/{key}/{key}/{key}"},
        {"path": f"/api/v1/sim/reference_to_video/{key}"},
        {"path": f"/api/v1/management/keys/{key}"},
        {"path": f"/notices/{key}", "key": None},
        {"path": "/api/v1/me", "headers": {"Authorization": f"Bearer {key}x"}},
        {"path": "/api/v1/me", "headers": {"Authorization": key.swapcase()}},
    ]
    for call in careless:
        await client.request("GET", **call)
    await client.request(
        "POST", client.tasks_path, headers={"Idempotency-Key": key}, body=client.body(prompt="")
    )
    await client.request("POST", client.tasks_path, body={key: key})
    revoked = make_key(world, client.account)
    await wait_status(client, 200, key=revoked.plaintext)
    world.patch("gatewaykey", revoked.name, {"revoked": True})
    await wait_status(client, 401, key=revoked.plaintext)

    say = f"Token {token} at {world.env['GATEWAY_SIMULATOR_URL']} is bad; Bearer {token}"
    refuse = {"behaviour": "status", "status": 400, "message": say}
    deny = {"behaviour": "status", "status": 401, "message": say, "count": 2}
    await simulate(
        {**refuse, "match": {"on": "submit", "prompt_contains": "Refuse"}},
        {**deny, "match": {"on": "submit", "prompt_contains": "Deny"}},
        {"behaviour": "fail", "message": say, "match": {"prompt_contains": "Fail"}},
    )
    tasks = [(await client.create(prompt=f"{what} it")).body["id"] for what in ("Refuse", "Fail")]
    tasks.append((await client.create(prompt="Deny it")).body["id"])
    ended = await client.wait_terminal(tasks)
    for body in (ended[task] for task in tasks[:2]):
        assert body["status"] == "failed"
        assert token not in body["error"]
        assert str(world.config.ports.simulator) not in body["error"]

    name = unique("task-bad")
    world.apply(describe_task(client, name, prompt=""), command="create")

    def is_over():
        return world.read("gatewaytask", name).get("status", {}).get("phase") == "Failed"

    await wait_for(is_over, what="the end of the bad task")
    # the simulator notes down what it was told to say
    forget_rules(world, token)
    assert find_leaks(world) == []


def forget_rules(world, token):
    log = world.config.log_directory / "simulator.log"
    kept = [line for line in log.read_bytes().splitlines(keepends=True) if not is_rule(line, token)]
    log.write_bytes(b"".join(kept))


def is_rule(line, token):
    return token.encode() in line and b"behaviour" in line


def test_search_finds_what_is_there(world):
    """The search itself: what the run's own files hold is found in them."""
    forms = list_secrets(world)
    assert {"provider token", "webhook secret", "id-key", "pepper-1", "media-key"} <= set(forms)
    kept = (world.config.directory / "state" / "credentials.json").read_bytes()
    assert forms["provider token"][0] in kept
    pepper = (world.config.secrets_directory / "pepper-1").read_bytes()
    assert any(form in pepper for form in forms["pepper-1"])
    leak = world.config.log_directory / "careless.log"
    leak.write_bytes(b"pepper is " + pepper)
    try:
        assert find_leaks(world) == ["pepper-1 in log/careless.log"]
    finally:
        leak.unlink()
