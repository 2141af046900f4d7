"""Errors in the dialect of the request, request ids, no redirects (contract §0.1, 0.6, 0.8, 1)."""

import asyncio
import json
import re

import pytest

from tests.servers.tenants import open_tenant
from tests.servers.world import wait_for

REQUEST_ID = re.compile(r"req_[a-z0-9]{20,}")
GOOGLE, OAUTH, OPENAI, TASK = "google", "oauth", "openai", "task"
UNROUTED = [
    ("GET", "/v1beta/models", {}, GOOGLE),
    ("POST", "/v1beta/models/m:streamGenerateContent?alt=sse", {}, GOOGLE),
    ("GET", "/v1beta", {"Authorization": "Bearer x"}, GOOGLE),
    ("POST", "/v1/models/m:generateContent", {}, GOOGLE),
    ("POST", "/v1/models/m:whatever", {"Authorization": "Bearer x"}, GOOGLE),
    ("POST", "/v1/models/a/b:generateContent", {}, GOOGLE),
    ("GET", "/v1/models/m:countTokens", {}, GOOGLE),
    ("GET", "/v1/models/m:latest", {}, OPENAI),
    ("GET", "/v1/models/m", {}, OPENAI),
    ("GET", "/v1/none", {"x-goog-api-key": "x"}, GOOGLE),
    ("GET", "/v1/none?key=x", {}, GOOGLE),
    ("GET", "/v1/none?key=x", {"Authorization": "Bearer x"}, OPENAI),
    ("GET", "/v1/none", {"x-goog-api-key": "x", "Authorization": "Bearer x"}, OPENAI),
    ("GET", "/v1/none", {}, OPENAI),
    ("POST", "/v1/none", {"Authorization": "Bearer x"}, OPENAI),
    ("GET", "/v1", {}, OPENAI),
    ("GET", "/v1/", {}, OPENAI),
    ("GET", "/v1x", {}, TASK),
    ("GET", "/", {}, TASK),
    ("GET", "/none", {}, TASK),
    ("GET", "/api", {}, TASK),
    ("GET", "/api/v1", {}, TASK),
    ("GET", "/api/v1/", {}, TASK),
    ("GET", "/api/v1/none", {}, TASK),
    ("POST", "/api/v1/none/reference_to_video", {"x-goog-api-key": "x"}, TASK),
    ("GET", "/api/v1/sim/reference_to_video/a/b", {}, TASK),
    ("GET", "/docs", {}, TASK),
    ("GET", "/redoc", {}, TASK),
    ("POST", "/oauth/token", {}, OAUTH),
    ("POST", "/oauth/register", {"x-goog-api-key": "x"}, OAUTH),
    ("GET", "/oauth/authorize?key=x", {"Authorization": "Bearer x"}, OAUTH),
    ("GET", "/.well-known/oauth-authorization-server", {}, OAUTH),
    ("GET", "/.well-known/openid-configuration", {}, OAUTH),
]


def check_form(answer, dialect):
    assert answer.headers["Content-Type"] == "application/json"
    error = answer.body["error"]
    if dialect == OAUTH:
        assert set(answer.body) == {"error", "error_description"}
        assert error == "invalid_request"
        return
    assert set(answer.body) == {"error"}
    if dialect == TASK:
        assert isinstance(error, str)
        assert error
    elif dialect == OPENAI:
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["code"], str)
        assert isinstance(error["message"], str)
    else:
        assert set(error) == {"code", "message", "status", "details"}
        assert error["code"] == answer.status
        assert error["details"] == []


@pytest.mark.parametrize(
    ("method", "path", "headers", "dialect"),
    UNROUTED,
    ids=lambda value: value if isinstance(value, str) else ",".join(value) or "-",
)
async def test_unrouted_path_is_404_in_the_dialect_of_the_request(
    shared, method, path, headers, dialect
):
    answer = await shared.request(method, path, headers=headers, key=None)
    assert answer.status == 404
    check_form(answer, dialect)
    if dialect == OPENAI:
        assert answer.body["error"]["type"] == "invalid_request_error"
        assert answer.body["error"]["code"] == "not_found"
    elif dialect == GOOGLE:
        assert answer.body["error"]["status"] == "NOT_FOUND"
    assert REQUEST_ID.fullmatch(answer.headers["X-Request-Id"])


@pytest.mark.parametrize(
    "path",
    [
        *("/api/v1/sim/reference_to_video/", "/api/v1/me/", "/api/v1/me/balance/"),
        *("/openapi.json/", "/healthz/", "//api/v1/me", "/api/v1/sim//reference_to_video"),
        *("/api//v1/me", "/api/v1/./me", "/api/v1/x/../me", "/api/v1/me;a=b"),
        *("/API/v1/me", "/api/v1/me%2F"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_variant_of_a_path_is_404_and_never_a_redirect(shared, method, path):
    answer = await shared.request(method, path)
    assert answer.status == 404, answer.raw
    assert "Location" not in answer.headers
    check_form(answer, TASK)


async def test_task_with_a_slash_behind_is_404(world, ended):
    async with world.client(ended[0], ended[1]) as owner:
        for path in (f"{ended[2]}/", f"{ended[2]}%2f"):
            answer = await owner.request("GET", f"{owner.tasks_path}/{path}")
            assert answer.status == 404


async def gather_all_kinds(world, client, ended):
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


async def test_every_answer_has_a_fresh_request_id_that_is_never_the_clients(world, client, ended):
    answers = await gather_all_kinds(world, client, ended)
    ids = {what: answer.headers.getall("X-Request-Id") for what, answer in answers.items()}
    assert all(len(values) == 1 for values in ids.values()), ids
    flat = [values[0] for values in ids.values()]
    assert all(REQUEST_ID.fullmatch(value) for value in flat)
    assert len(set(flat)) == len(flat)
    sent = {"X-Request-Id": "req_mine", "X-Client-Request-Id": "mine"}
    answer = await client.request("GET", "/api/v1/me", headers=sent)
    assert REQUEST_ID.fullmatch(answer.headers["X-Request-Id"])
    assert "mine" not in json.dumps(dict(answer.headers))


async def test_errors_of_the_task_api_have_no_other_member(world, client, ended):
    for what, answer in (await gather_all_kinds(world, client, ended)).items():
        if answer.status >= 400 and answer.raw and "dialect" not in what:
            assert isinstance(answer.body["error"], str), what
            assert set(answer.body) <= {"error", "errors"}, what
            assert ("errors" in answer.body) == (what == "400"), what


async def test_no_answer_is_422_or_compressed_or_open_to_browsers(world, client, ended):
    for what, answer in (await gather_all_kinds(world, client, ended)).items():
        assert answer.status != 422
        assert "Content-Encoding" not in answer.headers, what
        assert not any(name.lower().startswith("access-control-") for name in answer.headers), what
        assert "Server" not in answer.headers, what


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


def check_raw(answer):
    """An answer to what is no request is formed like all others."""
    head, body = answer.split(b"\r\n\r\n")
    assert REQUEST_ID.search(head.decode())
    assert b"content-type: application/json" in head
    assert set(json.loads(body)) == {"error"}


GARBAGE = {
    "no request": b"hello\r\n\r\n",
    "an unknown protocol": b"GET / HTTP/9.9\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a negative length": b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
}


@pytest.mark.parametrize("case", GARBAGE)
async def test_what_is_no_http_is_refused_and_the_next_is_served(world, shared, case):
    reader, writer = await asyncio.open_connection("127.0.0.1", world.config.ports.api)
    writer.write(GARBAGE[case])
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    check_raw(answer)
    assert (await shared.request("GET", "/api/v1/me")).status == 200


@pytest.mark.parametrize(
    "line", [b"X: " + b"a" * 80_000, b"X: a\r\n" * 14_000], ids=["one large", "many small"]
)
async def test_head_that_does_not_end_is_refused(world, shared, line):
    reader, writer = await asyncio.open_connection("127.0.0.1", world.config.ports.api)
    writer.write(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n" + line)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 431 ")
    check_raw(answer)
    assert (await shared.request("GET", "/api/v1/me")).status == 200


async def test_head_without_end_is_not_read_on(world, shared):
    _, writer = await asyncio.open_connection("127.0.0.1", world.config.ports.api)
    writer.write(b"GET /api/v1/me HTTP/1.1\r\n")

    async def write_on():
        for _ in range(10_000):
            writer.write(b"X: " + b"a" * 100_000)
            await writer.drain()

    with pytest.raises(ConnectionError):
        await write_on()
    assert (await shared.request("GET", "/api/v1/me")).status == 200


async def test_large_head_within_the_bound_is_read(shared):
    headers = {f"X-{number}": "a" * 1000 for number in range(30)}
    assert (await shared.request("GET", "/api/v1/me", headers=headers)).status == 200
