"""Changes of keys and accounts with kubectl count for calls (contract §0.10)."""

import pytest

from tests.servers.tenants import make_key, wait_known, wait_status

PATHS = {
    "create": ("POST", "/api/v1/sim/reference_to_video"),
    "read": ("GET", "/api/v1/sim/reference_to_video/task_x"),
    "me": ("GET", "/api/v1/me"),
    "balance": ("GET", "/api/v1/me/balance"),
}


def check_401(answer):
    assert answer.status == 401, answer.raw
    assert set(answer.body) == {"error"}
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.headers["X-Request-Id"].startswith("req_")
    assert not any(name.lower().startswith("x-ratelimit") for name in answer.headers)


CLOSED = {
    "revoked": {"revoked": True},
    "expired": {"expirationTime": "2020-01-01T00:00:00Z"},
}


@pytest.mark.parametrize("case", CLOSED)
async def test_closed_key_is_401_within_5_s_and_the_others_go_on(world, client, case):
    key = make_key(world, client.account)
    await wait_known(client, key.plaintext)
    world.patch("gatewaykey", key.name, CLOSED[case])
    check_401(await wait_status(client, 401, key=key.plaintext, seconds=5))
    for method, path in PATHS.values():
        check_401(await client.request(method, path, key=key.plaintext))
    await wait_known(client)
    if case != "revoked":
        world.patch("gatewaykey", key.name, {"expirationTime": None})
        await wait_known(client, key.plaintext)


async def test_suspended_account_is_401_and_returns(world, client):
    world.patch("gatewayaccount", client.account, {"suspended": True})
    check_401(await wait_status(client, 401))
    for method, path in PATHS.values():
        check_401(await client.request(method, path))
    world.patch("gatewayaccount", client.account, {"suspended": False})
    await wait_known(client)
