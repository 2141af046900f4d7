"""A price that changes while it is asked for, quoted, reserved and charged by real processes."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from json import loads

from tests.servers.tenants import describe_model, read_balance, unique
from tests.servers.world import wait_for

SECOND = timedelta(seconds=1)


def read_time(text):
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")


async def quote(client, service, model, **params):
    body = {"service": service, "action": "reference_to_video", "model": model}
    if params:
        body["params"] = {**client.body(**params), "model": None}
    answer = await client.request("POST", "/api/v1/price_quotes", body=body)
    return answer.body["price_quote"] if answer.status == 200 else None


async def test_a_price_that_changes_is_quoted_reserved_and_charged_by_its_second(world, client):
    name = unique("model")
    model = describe_model(world, name)
    change = datetime.now(UTC).replace(microsecond=0) + 12 * SECOND
    model["spec"]["prices"] = [
        {"perSecond": [{"micros": 10_001}]},
        {"perCallMicros": 7, "effectiveTime": change.isoformat()},
    ]
    world.apply(model)
    seen = {}

    async def ask():
        """A quote, a create and a quote; what was reserved, where no second lies between."""
        before = await quote(client, name, name, duration_seconds=3)
        if before is None:
            return False
        path = f"/api/v1/{name}/reference_to_video"
        asked = client.body(model=name, duration_seconds=3)
        created = await client.request("POST", path, body=asked)
        after = await quote(client, name, name, duration_seconds=3)
        if created.status != 202 or before["as_of"] != after["as_of"]:
            return False
        assert before == after
        old = read_time(before["as_of"]) < change
        # 30003 micro-dollars are four cents, 7 are one: what is reserved is rounded up
        assert before["reservation_amount_cents"] == (4 if old else 1)
        task = world.read("gatewaytask", created.body["id"].replace("_", "-", 1))
        assert task["spec"]["request"]["reservedMicros"] == (30_003 if old else 7)
        seen.setdefault(old, f"{path}/{created.body['id']}")
        if len(seen) == 2:
            return True
        await asyncio.sleep(0.5)  # each ask makes a task, and the change takes its time to come
        return False

    await wait_for(ask, seconds=40, what="a task at the old price and one at the new")

    async def cost(path):
        answer = await client.request("GET", path)
        body = loads(answer.raw, parse_float=Decimal)
        return body["usage"]["cost"] if body["status"] == "completed" else None

    async def is_charged(path, dollars):
        return await cost(path) == Decimal(dollars)

    await wait_for(lambda: is_charged(seen[True], "0.030003"), seconds=20, what="the old charge")
    await wait_for(lambda: is_charged(seen[False], "0.000007"), seconds=20, what="the new charge")
    assert (await read_balance(client))["balance_cents"] < 10_000


async def test_a_price_that_is_edited_meanwhile_changes_nothing_for_a_call_under_way(world, client):
    name = unique("model")
    world.apply(describe_model(world, name, prices=[{"perSecond": [{"micros": 60_000}]}]))
    path = f"/api/v1/{name}/reference_to_video"

    async def create():
        answer = await client.request("POST", path, body=client.body(model=name))
        return answer.body["id"] if answer.status == 202 else None

    task = await wait_for(create, what="the model in the API's catalog")
    world.apply(describe_model(world, name, prices=[{"perSecond": [{"micros": 1}]}]))
    bodies = []

    async def is_over():
        bodies[:] = [(await client.request("GET", f"{path}/{task}")).body]
        return bodies[0]["status"] != "processing"

    await wait_for(is_over, seconds=20, what="the end")
    assert bodies[0]["usage"] == {"cost": 0.3}
    listed = await client.request("GET", f"/api/v1/price_schedules?model={name}", key=None)
    (item,) = listed.body["price_schedules"]
    assert item["billing_config"]["per_second"][0]["micros"] == 1
