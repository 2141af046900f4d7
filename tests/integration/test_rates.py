"""The rate of paid calls: what is counted, told and refused (contract §12.1 to 12.4)."""

import asyncio
import collections
import time

import pytest

from tests.servers.replica import run_api
from tests.servers.tenants import (
    describe_model,
    make_key,
    open_tenant,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import wait_for

HEADERS = ("X-RateLimit-Limit-RPM", "X-RateLimit-Remaining-RPM", "X-RateLimit-Reset")


def rate_of(answer):
    """Limit, remaining and reset; AssertionError where one is no whole number."""
    assert all(answer.headers[name].isdecimal() for name in HEADERS), answer.headers
    return tuple(int(answer.headers[name]) for name in HEADERS)


async def spend(client, base=None):
    """The cheapest call that counts."""
    headers = {"Content-Type": "application/json"}
    return await client.request("POST", client.tasks_path, headers=headers, data=b"{", base=base)


async def test_every_answer_after_authentication_counts_and_tells(world, client):
    name = unique("narrow")
    stays = {"name": "audio", "supported": False}
    service = {"service": world.env["GATEWAY_SERVICE"]}
    world.apply(describe_model(world, name, fields=[stays], **service))
    await wait_status(
        client, 409, client.tasks_path, method="POST", body=client.body(model=name, audio=True)
    )
    async with open_tenant(world) as own:
        dear = {"output_resolution": "4k", "duration_seconds": 16}
        text = {"Content-Type": "text/plain"}
        calls = [
            (202, lambda: own.create(idempotency_key="k")),
            (202, lambda: own.create(idempotency_key="k")),
            (400, lambda: spend(own)),
            (400, lambda: own.create(prompt="")),
            (400, lambda: own.create(idempotency_key="")),
            (409, lambda: own.create(idempotency_key="k", prompt="Something else")),
            (409, lambda: own.create(model=name, audio=True)),
            (415, lambda: own.request("POST", own.tasks_path, headers=text, data=b"{}")),
            (413, lambda: own.create(prompt="a" * 1_100_000)),
        ]
        began = time.time()
        for number, (status, call) in enumerate(calls):
            answer = await call()
            assert answer.status == status, answer.raw
            limit, remaining, reset = rate_of(answer)
            assert (limit, remaining) == (300, 299 - number)
            # when the first of them leaves the window
            assert began + 59 <= reset <= time.time() + 61
            assert "Retry-After" not in answer.headers
        world.patch("gatewayaccount", own.account, {"funds": {"paidMicros": 1}})
        poor = await wait_status(own, 402, own.tasks_path, method="POST", body=own.body(**dear))
        assert rate_of(poor)[:2] <= (300, 290)
    world.run.kubectl("delete", "gatewaymodel", name)


async def test_401_403_and_404_tell_no_rate_and_count_nothing(world, client):
    management = make_key(world, client.account, "Management").plaintext
    await wait_status(client, 403, key=management)
    body = client.body()
    answers = [
        await client.request("POST", client.tasks_path, body=body, key=None),
        await client.request("POST", client.tasks_path, body=body, key="nonsense"),
        await client.request("POST", client.tasks_path, body=body, key=management),
        await client.request("POST", "/api/v1/none/reference_to_video", body=body),
        await client.request("PUT", client.tasks_path, body=body),
    ]
    assert [answer.status for answer in answers] == [401, 401, 403, 404, 405]
    assert not any(name in answer.headers for name in HEADERS for answer in answers)
    assert rate_of(await spend(client))[1] == 299


async def test_reads_are_not_counted(client):
    task = (await client.create()).body["id"]
    paths = [f"{client.tasks_path}/{task}", "/api/v1/me", "/api/v1/me/balance", "/openapi.json"]
    for path in paths * 3:
        answer = await client.request("GET", path)
        assert answer.status == 200
        assert not any(name in answer.headers for name in HEADERS)
    assert rate_of(await spend(client))[1] == 298


@pytest.mark.parametrize("at_once", [1, 30])
async def test_300_calls_pass_and_the_301st_is_the_one_refused(client, at_once):
    slots = asyncio.Semaphore(at_once)

    async def call():
        async with slots:
            return await spend(client)

    passed = await asyncio.gather(*(call() for _ in range(300)))
    assert {answer.status for answer in passed} == {400}
    assert sorted(rate_of(answer)[1] for answer in passed) == list(range(300))
    # all are told the same: when the oldest call leaves the window
    (leaves,) = {rate_of(answer)[2] for answer in passed}
    for refuse in (call, client.create, lambda: client.create(idempotency_key="k")):
        asked = time.time()
        answer = await refuse()
        told = time.time()
        assert answer.status == 429
        assert answer.body == {"error": "Rate limit of 300 requests per minute reached."}
        limit, remaining, reset = rate_of(answer)
        assert (limit, remaining) == (300, 0)
        wait = int(answer.headers["Retry-After"])
        assert 1 <= wait <= 60
        # both are rounded up
        assert asked - 1 < reset - wait < told + 1
        assert reset == leaves
    # what does not count goes on
    assert (await client.request("GET", "/api/v1/me/balance")).status == 200


async def test_calls_at_once_pass_exactly_to_the_limit(world):
    async with open_tenant(world, requestsPerMinute=20) as client:
        answers = await asyncio.gather(*(spend(client) for _ in range(60)))
        assert collections.Counter(answer.status for answer in answers) == {400: 20, 429: 40}


async def test_keys_of_an_account_share_its_rate_and_accounts_do_not(world, other):
    async with open_tenant(world, requestsPerMinute=4) as client:
        second = make_key(world, client.account).plaintext
        await wait_known(client, second)
        headers = {"Content-Type": "application/json"}
        call = {"method": "POST", "path": client.tasks_path, "headers": headers, "data": b"{"}
        statuses = [(await client.request(**call, key=key)).status for key in ["", second] * 3]
        assert statuses == [400] * 4 + [429] * 2
        assert rate_of(await spend(other))[1] == 299


async def test_two_processes_share_the_rate_exactly(world):
    with run_api(world) as base:
        async with open_tenant(world, requestsPerMinute=40) as client:
            await wait_known(client, base=base)
            answers = await asyncio.gather(
                *(spend(client, base=[None, base][n % 2]) for n in range(100))
            )
            assert collections.Counter(answer.status for answer in answers) == {400: 40, 429: 60}
            passed = [rate_of(answer)[1] for answer in answers if answer.status == 400]
            assert sorted(passed) == list(range(40))


async def test_limit_follows_the_account_within_seconds(world):
    async with open_tenant(world, requestsPerMinute=5) as client:
        assert rate_of(await spend(client)) == (5, 4, rate_of(await spend(client))[2])
        world.patch("gatewayaccount", client.account, {"requestsPerMinute": 1000})

        async def is_new():
            return rate_of(await spend(client))[0] == 1000

        await wait_for(is_new, seconds=5, what="the new limit")


@pytest.mark.slow
async def test_call_after_retry_after_passes_and_refused_ones_do_not_prolong_it(throttled):
    told = await throttled.hear()
    assert told["burst"] == [400] * 5
    assert told["refused"] == 429
    # the oldest call of the burst leaves the window a minute after it was made
    assert 60 - told["spent"] <= told["wait"] <= 60
    assert told["early"] == 429
    assert told["after"] == 400
