"""Which refusal comes first where there are several: the order of contract §0.9, pair by pair."""

import pytest

from tests.servers.replica import run_api
from tests.servers.tenants import (
    create_patiently,
    describe_model,
    make_key,
    open_tenant,
    unique,
    wait_known,
    wait_status,
)

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
LARGE = b"{" * (1024 * 1024 + 1)


@pytest.fixture(scope="module")
def narrow(world):
    """A model beside the first one that takes no sound and no 4k."""
    name = unique("narrow")
    rules = [
        {"name": "audio", "supported": False},
        {"name": "output_resolution", "allowed": ["540p", "720p"]},
    ]
    world.apply(describe_model(world, name, fields=rules, service=world.env["GATEWAY_SERVICE"]))
    yield name
    world.run.kubectl("delete", "gatewaymodel", name)


@pytest.fixture
async def spent(world):
    """A client whose rate is used up, and a management key of the same account."""
    async with open_tenant(world) as client:
        management = make_key(world, client.account, "Management").plaintext
        await wait_status(client, 403, key=management)
        assert (await create_patiently(client, "k")).status == 202
        # lowered afterwards, so that the create has room to be repeated
        world.patch("gatewayaccount", client.account, {"requestsPerMinute": 1})
        call = {"method": "POST", "headers": JSON, "data": b"{"}
        await wait_status(client, 429, client.tasks_path, **call)
        yield client, management


@pytest.fixture
async def poor(world, narrow):
    """A client without money, whose key `k` stands for a task."""
    async with open_tenant(world, funds={"paidMicros": 300_000}) as client:
        assert (await create_patiently(client, "k")).status == 202
        await wait_status(
            client,
            409,
            client.tasks_path,
            method="POST",
            body=client.body(model=narrow, audio=True),
        )
        yield client


async def post(client, headers=JSON, data=b"{", **options):
    return (
        await client.request("POST", client.tasks_path, headers=headers, data=data, **options)
    ).status


async def test_route_and_method_before_the_credential(shared):
    missing = await shared.request("POST", "/api/v1/none/reference_to_video", key=None)
    assert missing.status == 404
    assert (await shared.request("PUT", shared.tasks_path, key=None)).status == 405
    assert (await shared.request("PUT", "/api/v1/me", key=None)).status == 405


async def test_method_before_maintenance_before_the_credential(world, shared):
    with run_api(world, GATEWAY_MAINTENANCE="1") as base:
        await wait_known(shared, base=base)
        assert (await shared.request("PUT", shared.tasks_path, base=base, key=None)).status == 405
        assert await post(shared, base=base, key=None) == 503
        assert await post(shared, base=base, key="nonsense") == 503


async def test_credential_before_everything_of_the_request(shared):
    for headers, data in ((TEXT, b"{"), (JSON, LARGE), (JSON, b"{")):
        assert await post(shared, headers, data, key=None) == 401
        assert await post(shared, headers, data, key="nonsense") == 401


async def test_class_before_the_rate_and_the_body(spent):
    client, management = spent
    for headers, data in ((TEXT, b"{"), (JSON, LARGE), (JSON, b"{")):
        assert await post(client, headers, data, key=management) == 403


async def test_rate_before_type_size_body_replay_and_conflict(spent):
    client, _ = spent
    for headers, data in ((TEXT, b"{"), (JSON, LARGE), (JSON, b"{")):
        assert await post(client, headers, data) == 429
    assert (await client.create(idempotency_key="")).status == 429
    assert (await client.create(idempotency_key="k")).status == 429
    assert (await client.create(idempotency_key="k", prompt="Something else")).status == 429


async def test_type_before_size_before_body(shared):
    assert await post(shared, TEXT, LARGE) == 415
    assert await post(shared, JSON, LARGE) == 413
    assert await post(shared, {**JSON, "Idempotency-Key": ""}, LARGE) == 413
    assert await post(shared, {**TEXT, "Idempotency-Key": ""}, b"{") == 415


async def test_body_before_the_replay_and_its_conflict(poor):
    assert (await poor.create(idempotency_key="k", prompt="")).status == 400
    assert await post(poor, {**JSON, "Idempotency-Key": "k"}) == 400
    assert await post(poor, {**TEXT, "Idempotency-Key": "k"}, b"{}") == 415
    bad = await poor.create(idempotency_key="k", callback_url="http://10.0.0.1/")
    assert bad.status == 400


async def test_replay_and_its_conflict_before_model_and_money(poor, narrow):
    assert (await poor.create()).status == 402
    assert (await create_patiently(poor, "k")).status == 202
    other = await create_patiently(poor, "k", model=narrow, audio=True)
    assert other.status == 409
    assert "Idempotency-Key" in other.body["error"]
    assert "X-Task-Id" in other.headers


async def test_model_before_money(poor, narrow):
    unsupported = await poor.create(model=narrow, audio=True)
    assert unsupported.status == 409
    assert "Idempotency-Key" not in unsupported.body["error"]
    assert (await poor.create(model="no-such-model")).status == 400
    assert (await poor.create(model=narrow)).status == 402


async def test_body_before_model_and_money(poor, narrow):
    assert (await poor.create(model=narrow, audio=True, duration_seconds=99)).status == 400
    assert (await poor.create(prompt="")).status == 400
