"""Errors in the dialect of the request, request ids, no redirects (contract §0.1, 0.6, 0.8, 1)."""

import asyncio
import json
import re

import pytest

from tests.servers.tenants import open_tenant
from tests.servers.world import wait_for

REQUEST_ID = re.compile(r"req_[a-z0-9]{20,}")


async def gather_all_kinds(world, client):
    """Answers of every status that can be had, by what they are."""
    path = client.tasks_path
    async with open_tenant(world, requestsPerMinute=1) as tight:
        await tight.create()
        return {
            "200 of me": await client.request("GET", "/api/v1/me"),
            "200 of health": await client.request("GET", "/healthz", key=None),
            "200 of the document": await client.request("GET", "/openapi.json", key=None),
            "202": await client.create(idempotency_key="ids"),
            "202 replayed": await client.create(idempotency_key="ids"),
            "400": await client.create(prompt=""),
            "401": await client.request("POST", path, key=None),
            "404 of a route": await client.request("GET", "/api/v1/none"),
            "404 of a task": await client.poll("task_none"),
            "404 of another dialect": await client.request("GET", "/v1beta/none"),
            "405 of a task path": await client.request("PUT", path),
            "405 of the account": await client.request("PUT", "/api/v1/me"),
            "405 with OPTIONS": await client.request("OPTIONS", path),
            "409": await client.create(idempotency_key="ids", prompt="x"),
            "413": await client.create(prompt="a" * 1_100_000),
            "415": await client.request("POST", path, data=b"{}"),
            "429": await tight.create(),
            "HEAD": await client.request("HEAD", path),
        }


async def test_every_answer_has_its_own_request_id_and_only_declared_members(world, client):
    answers = await gather_all_kinds(world, client)
    for what, answer in answers.items():
        assert answer.status != 422
        assert not {"Content-Encoding", "Server"} & set(answer.headers), what
        assert not any(name.lower().startswith("access-control-") for name in answer.headers), what
        if answer.status >= 400 and answer.raw and "dialect" not in what:
            assert isinstance(answer.body["error"], str), what
            assert set(answer.body) == ({"error", "errors"} if what == "400" else {"error"}), what
    ids = {what: answer.headers.getall("X-Request-Id") for what, answer in answers.items()}
    assert all(len(values) == 1 for values in ids.values()), ids
    flat = [values[0] for values in ids.values()]
    assert all(REQUEST_ID.fullmatch(value) for value in flat)
    assert len(set(flat)) == len(flat)
    sent = {"X-Request-Id": "req_mine", "X-Client-Request-Id": "mine"}
    answer = await client.request("GET", "/api/v1/me", headers=sent)
    assert REQUEST_ID.fullmatch(answer.headers["X-Request-Id"])
    assert "mine" not in json.dumps(dict(answer.headers))


async def test_request_id_is_in_the_log_with_the_clients_own(world, client):
    answer = await client.request(
        "POST",
        client.tasks_path,
        headers={"X-Client-Request-Id": "client-4711"},
        body=client.body(prompt=""),
    )
    lines = await wait_for(
        lambda: [line for line in world.log("api").splitlines() if "client-4711" in line],
        what="the line in the log",
    )
    assert len(lines) == 1
    assert answer.headers["X-Request-Id"] in lines[0]
    assert client.account in lines[0]
    for bad in ("a" * 513, "a b", "\u00e9"):
        await client.request("PUT", client.tasks_path, headers={"X-Client-Request-Id": bad})
        assert bad not in world.log("api")


async def test_head_without_end_is_not_read_on(world, shared):
    _, writer = await asyncio.open_connection("127.0.0.1", world.config.ports.api)
    writer.write(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n")

    async def write_on():
        for _ in range(10_000):
            writer.write(b"X: " + b"a" * 100_000)
            await writer.drain()

    with pytest.raises(ConnectionError):
        await write_on()
    assert (await shared.request("GET", "/api/v1/me")).status == 200
