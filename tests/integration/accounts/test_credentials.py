"""Who may call: every form of a credential, and what kubectl does to it (contract §0.10)."""

import string
import time
import zlib

import pytest
from multidict import CIMultiDict

from gateway_core.api.key import mint_key
from tests.servers.tenants import (
    describe_account,
    describe_key,
    describe_token,
    make_key,
    unique,
    wait_known,
    wait_status,
)

PATHS = {
    "create": ("POST", "/api/v1/sim/reference_to_video"),
    "read": ("GET", "/api/v1/sim/reference_to_video/task_x"),
    "me": ("GET", "/api/v1/me"),
    "balance": ("GET", "/api/v1/me/balance"),
}


async def send(client, authorization, path="/api/v1/me", method="GET"):
    values = [authorization] if isinstance(authorization, str) else authorization
    headers = CIMultiDict([("Authorization", value) for value in values])
    return await client.request(method, path, headers=headers, key=None)


def check_401(answer):
    assert answer.status == 401, answer.raw
    assert set(answer.body) == {"error"}
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.headers["X-Request-Id"].startswith("req_")
    assert not any(name.lower().startswith("x-ratelimit") for name in answer.headers)


def forge(key, prefix="sk", secret="A" * 32):
    """A well-formed key with the id of another one."""
    return sign(f"{prefix}{key[2:11]}_{secret}")


def sign(head):
    """The head of a key and its check sum: CRC32 in six digits to the base of 62."""
    digits = string.digits + string.ascii_uppercase + string.ascii_lowercase
    value, text = zlib.crc32(head.encode()), ""
    for _ in range(6):
        value, rest = divmod(value, 62)
        text = digits[rest] + text
    return head + text


def test_keys_are_signed_as_here():
    key = mint_key().plaintext
    assert sign(key[:-6]) == key
    assert len(forge(key)) == len(key)


@pytest.mark.parametrize("case", PATHS)
async def test_no_credential_is_401_everywhere(shared, case):
    method, path = PATHS[case]
    answer = await shared.request(method, path, key=None)
    check_401(answer)
    check_401(await send(shared, "Bearer nonsense", path, method))


async def test_management_key_is_403_on_every_standard_path(world, client):
    key = make_key(world, client.account, "Management").plaintext
    await wait_status(client, 403, key=key)
    for method, path in PATHS.values():
        answer = await client.request(method, path, key=key)
        assert answer.status == 403
        assert set(answer.body) == {"error"}
        assert "WWW-Authenticate" not in answer.headers


async def test_management_prefix_does_not_open_a_standard_key(shared):
    secret = shared.key.partition("_")[2][:32]
    check_401(await send(shared, f"Bearer {forge(shared.key, 'mk', secret)}"))


CLOSED = {
    "revoked": {"revoked": True},
    "disabled": {"disabled": True},
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
        world.patch("gatewaykey", key.name, {"disabled": False, "expirationTime": None})
        await wait_known(client, key.plaintext)


async def test_key_expires_by_the_clock_without_a_change(world, client):
    ends = int(time.time()) + 4
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends))
    key = make_key(world, client.account, expirationTime=soon)
    await wait_known(client, key.plaintext)
    left = ends + 5 - time.time()
    check_401(await wait_status(client, 401, key=key.plaintext, seconds=left))
    assert time.time() >= ends


async def test_suspended_account_is_401_and_returns(world, client):
    world.patch("gatewayaccount", client.account, {"suspended": True})
    check_401(await wait_status(client, 401))
    for method, path in PATHS.values():
        check_401(await client.request(method, path))
    world.patch("gatewayaccount", client.account, {"suspended": False})
    await wait_known(client)


async def test_key_of_an_account_that_is_not_there_opens_once_it_is(world, client):
    account = unique("later")
    key, obj = describe_key(world, account)
    sentinel, sentinel_obj = describe_key(world, client.account)
    # applied behind it: when the second is known, the first is too
    world.apply(obj, sentinel_obj)
    await wait_known(client, sentinel.plaintext)
    check_401(await client.request("GET", "/api/v1/me", key=key.plaintext))
    world.apply(describe_account(account))
    await wait_known(client, key.plaintext)


async def test_two_tokens_open_while_a_key_is_rotated(world, client):
    key, obj = describe_key(world, client.account)
    world.apply(obj)
    await wait_known(client, key.plaintext)
    new, token = describe_token(world)
    world.patch("gatewaykey", key.name, {"tokens": [obj["spec"]["tokens"][0], token]})
    await wait_known(client, new)
    assert (await client.request("GET", "/api/v1/me", key=key.plaintext)).status == 200
    world.patch("gatewaykey", key.name, {"tokens": [token]})
    check_401(await wait_status(client, 401, key=key.plaintext))
    assert (await client.request("GET", "/api/v1/me", key=new)).status == 200


async def test_refused_calls_are_indistinguishable(shared):
    """One text and one set of headers for a key that is unknown, and one that is misspelt."""
    bodies = set()
    for value in ("Bearer x", f"Bearer {mint_key().plaintext}", f"Bearer {forge(shared.key)}"):
        answer = await send(shared, value)
        check_401(answer)
        bodies.add((answer.raw, tuple(sorted(map(str.lower, answer.headers)))))
    assert len(bodies) == 1


async def test_new_key_opens_within_seconds(world, client):
    key = make_key(world, client.account)
    await wait_status(client, 200, key=key.plaintext, seconds=5)
