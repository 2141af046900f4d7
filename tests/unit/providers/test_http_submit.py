"""Starting a job: what is sent, and what each answer means."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers import http_calls
from gateway_core.providers.http import HttpUpstream
from gateway_core.providers.registry import build_upstream
from gateway_core.providers.upstream import (
    JobInput,
    SubmissionGuarantee,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamRejected,
    UpstreamUnclear,
)
from tests.unit.providers.conftest import Connect, make_document

JOB = JobInput("uid-1", "q4/fast", {"prompt": "Ein Bär", "audio": True, "none": None})


async def test_job_is_submitted_as_declared(provider: Any, upstream: HttpUpstream) -> None:
    provider.answers({"job": {"id": "job_1"}})
    assert await upstream.submit(JOB) == "job_1"
    (seen,) = provider.seen
    assert (seen.method, seen.target) == ("POST", "/v1/q4%2Ffast/jobs")
    assert seen.headers["authorization"] == "Bearer s3cr3t-Credential-0042"
    assert seen.headers["idempotency-key"] == "uid-1"
    assert seen.headers["content-type"] == "application/json"
    assert "cookie" not in seen.headers
    assert "aiohttp" not in seen.headers["user-agent"]
    body = json.loads(seen.body)
    assert body == {"prompt": "Ein Bär", "audio": True, "ref": "uid-1", "engine": "q4/fast"}


async def test_headers_of_a_call_override_the_common_ones(provider: Any, connect: Connect) -> None:
    headers = [{"name": "authorization", "value": "Key {credential}"}]
    provider.answers({"job": {"id": 7}})
    upstream = connect({"http.submit.headers": headers}, url=provider.url + "/base/")
    assert await upstream.submit(JOB) == "7"
    assert provider.seen[0].target == "/base/v1/q4%2Ffast/jobs"
    assert provider.seen[0].headers["authorization"] == "Key s3cr3t-Credential-0042"


@pytest.mark.parametrize(
    ("body", "job_id"), [("job_1", "job_1"), (12345678901, "12345678901"), ("x" * 512, "x" * 512)]
)
async def test_ids_are_taken_as_text(
    provider: Any, upstream: HttpUpstream, body: Any, job_id: str
) -> None:
    provider.answers({"job": {"id": body}})
    assert await upstream.submit(JOB) == job_id


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>ok</html>",
        b"\xff\xfe{",
        b"{}",
        b"[]",
        b"null",
        b'{"job": {"id": null}}',
        b'{"job": {"id": ""}}',
        b'{"job": {"id": true}}',
        b'{"job": {"id": 1.5}}',
        b'{"job": {"id": ["a"]}}',
        b'{"job": {"id": "a\\nb"}}',
        b'{"job": {"id": "' + b"x" * 513 + b'"}}',
        b'{"job": {"id": "\\ud800"}}',
        b"[" * 100_000,
        b'{"job": {"id": "a"}, "pad": "' + b"x" * 2**20 + b'"}',
    ],
    ids=range(16),
)
async def test_success_without_an_id_is_unclear(
    provider: Any, upstream: HttpUpstream, body: bytes
) -> None:
    provider.answers(web.Response(body=body))
    with pytest.raises(UpstreamUnclear):
        await upstream.submit(JOB)


@pytest.mark.parametrize(
    ("status", "headers", "error", "wait"),
    [
        *[(s, {}, UpstreamRejected, None) for s in (400, 404, 405, 410, 413, 415, 418, 422, 451)],
        *[(s, {}, UpstreamDenied, None) for s in (401, 402, 403)],
        *[(s, {}, UpstreamUnclear, None) for s in (408, 425, 500, 501, 502, 503, 504, 520)],
        # another submission with the same idempotency key is still at work
        (409, {}, UpstreamUnclear, None),
        *[(s, {"Location": "/"}, UpstreamUnclear, None) for s in (301, 302, 303, 304, 307, 308)],
        (429, {}, UpstreamBusy, 5),
        (429, {"Retry-After": "17"}, UpstreamBusy, 17),
        (429, {"Retry-After": "0"}, UpstreamBusy, 1),
        (429, {"Retry-After": "86400"}, UpstreamBusy, 120),
        (429, {"Retry-After": "-3"}, UpstreamBusy, 5),
        (429, {"Retry-After": "soon"}, UpstreamBusy, 5),
        (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, UpstreamBusy, 1),
        (429, {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}, UpstreamBusy, 120),
        (503, {"Retry-After": "9"}, UpstreamBusy, 9),
    ],
)
async def test_each_status_has_its_meaning(
    provider: Any,
    upstream: HttpUpstream,
    status: int,
    headers: dict[str, str],
    error: type[UpstreamError],
    wait: float | None,
) -> None:
    provider.answers(web.Response(status=status, headers=headers, body=b"{}"))
    with pytest.raises(UpstreamError) as caught:
        await upstream.submit(JOB)
    assert type(caught.value) is error
    assert caught.value.retry_after == wait
    assert caught.value.message
    assert len(provider.seen) == 1


async def test_conflict_without_a_key_is_a_refusal(provider: Any, connect: Connect) -> None:
    provider.answers(409)
    with pytest.raises(UpstreamRejected):
        await connect({"http.submit.idempotencyHeader": None}).submit(JOB)


async def test_refusal_tells_why_and_nothing_else(provider: Any, upstream: HttpUpstream) -> None:
    text = f"Image 2 at {provider.url}/a.jpg is too small for key s3cr3t-Credential-0042"
    refusal = json.dumps({"error": {"message": text}}).encode()
    provider.answers(web.Response(status=422, body=refusal))
    with pytest.raises(UpstreamRejected) as caught:
        await upstream.submit(JOB)
    assert caught.value.message == "Image 2 at [removed] is too small for key [removed]"


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"error": {"message": {"a": 1}}}'])
async def test_refusal_without_a_reason_has_a_general_one(
    provider: Any, upstream: HttpUpstream, body: bytes
) -> None:
    provider.answers(web.Response(status=400, body=body))
    with pytest.raises(UpstreamRejected, match="refused the request"):
        await upstream.submit(JOB)


async def test_words_of_a_denial_stay_inside(provider: Any, upstream: HttpUpstream) -> None:
    denial = b'{"error": {"message": "Your account is overdue"}}'
    provider.answers(web.Response(status=402, body=denial))
    with pytest.raises(UpstreamDenied) as caught:
        await upstream.submit(JOB)
    assert "overdue" not in caught.value.message


@pytest.mark.parametrize("kind", ["refused connection", "unknown host", "failed handshake"])
async def test_provider_that_is_not_reached_is_busy(
    provider: Any, connect: Connect, unused_tcp_port: int, kind: str
) -> None:
    url = {
        "refused connection": f"http://127.0.0.1:{unused_tcp_port}",
        "unknown host": "http://nowhere.invalid",
        "failed handshake": provider.url.replace("http:", "https:"),
    }[kind]
    with pytest.raises(UpstreamBusy) as caught:
        await connect(url=url).submit(JOB)
    assert url.partition("://")[2] not in caught.value.message
    assert "nowhere" not in caught.value.message


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 2",
        b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 201 Created\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=range(8),
)
async def test_broken_answer_is_unclear(
    raw_server: Callable[[bytes], Awaitable[str]],
    connect: Connect,
    answer: bytes,
) -> None:
    url = await raw_server(answer)
    with pytest.raises(UpstreamUnclear):
        await connect(url=url).submit(JOB)


async def test_reset_is_unclear_and_nothing_is_repeated(provider: Any, connect: Connect) -> None:
    async def reset(request: web.Request) -> web.Response:
        assert request.transport
        request.transport.abort()
        return web.Response()

    provider.answers({"job": {"id": "a"}}, reset)
    # a method that HTTP clients like to repeat
    upstream = connect({"http.submit.method": "PUT"})
    await upstream.submit(JOB)
    with pytest.raises(UpstreamUnclear):
        await upstream.submit(JOB)
    assert len(provider.seen) == 2


@pytest.mark.usefixtures("tenth")
async def test_time_out_is_unclear(provider: Any, connect: Connect) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    provider.answers(hang)
    with pytest.raises(UpstreamUnclear):
        await connect({"http.requestTimeoutSeconds": 1}).submit(JOB)


async def test_no_more_calls_are_under_way_than_are_allowed(
    provider: Any, connect: Connect
) -> None:
    running = most = 0

    async def slow(_: web.Request) -> web.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return web.json_response({"job": {"id": "a"}})

    provider.answers(slow)
    upstream = connect({"maxConcurrentRequests": 2})
    assert await asyncio.gather(*(upstream.submit(JOB) for _ in range(10))) == ["a"] * 10
    assert most == 2


@pytest.mark.usefixtures("tenth")
async def test_waiting_for_a_turn_is_no_time_out(provider: Any, connect: Connect) -> None:
    provider.answers({"job": {"id": "a"}})
    upstream = connect({"maxConcurrentRequests": 2, "http.requestTimeoutSeconds": 2})
    for _ in range(2):
        await upstream._slots.acquire(None)
    waiting = asyncio.create_task(upstream.submit(JOB))
    await asyncio.wait([waiting], timeout=0.3)
    assert not waiting.done()
    assert provider.seen == []
    for _ in range(2):
        upstream._slots.release(None)
    assert await waiting == "a"


async def test_call_that_gets_no_slot_is_busy(
    provider: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        arrived.set()
        await go_on.wait()
        return web.json_response({"job": {"id": "a"}})

    provider.answers(hang)
    monkeypatch.setattr(http_calls, "SLOT_SECONDS", 0.05)
    upstream = connect({"maxConcurrentRequests": 1})
    first = asyncio.create_task(upstream.submit(JOB))
    await arrived.wait()
    with pytest.raises(UpstreamBusy):
        await upstream.submit(JOB)
    go_on.set()
    assert await first == "a"
    assert await upstream.submit(JOB) == "a"
    assert len(provider.seen) == 2


@pytest.mark.parametrize("body", ["join(', ', input.prompt)", "input.none"])
async def test_input_that_does_not_fit_is_refused_unsent(
    provider: Any, connect: Connect, body: str
) -> None:
    with pytest.raises(UpstreamRejected):
        await connect({"http.submit.body": body}).submit(JOB)
    assert provider.seen == []


def test_guarantee_follows_from_the_declaration() -> None:
    spec = make_document("https://api.example.com")
    policy = AddressPolicy()
    made = build_upstream(ProviderSpec.model_validate(spec), b" token\n", policy)
    assert made.guarantee is SubmissionGuarantee.IDEMPOTENCY_KEY
    assert (made.can_cancel, made.poll_interval) == (True, (1, 15))
    assert made.max_output_bytes == 2 * 2**30
    assert (made.can_find, made.resubmits_unknown, made.submit_seconds) == (True, False, 25)
    del spec["http"]["submit"]["idempotencyHeader"]
    made = build_upstream(ProviderSpec.model_validate(spec), "token", policy)
    assert made.guarantee is SubmissionGuarantee.LOOKUP
    del spec["http"]["lookup"], spec["http"]["cancel"]
    spec["onUnknownSubmission"] = "Resubmit"
    made = build_upstream(ProviderSpec.model_validate(spec), "token", policy)
    assert made.guarantee is SubmissionGuarantee.NONE
    assert (made.can_cancel, made.can_find, made.resubmits_unknown) == (False, False, True)


@pytest.mark.parametrize("credential", [None, b"", b"\xff", "a\nb", " \n"])
def test_credential_that_cannot_be_used_is_refused(credential: bytes | str | None) -> None:
    spec = ProviderSpec.model_validate(make_document("https://api.example.com"))
    with pytest.raises(ValueError, match="credential"):
        build_upstream(spec, credential, AddressPolicy())


def test_provider_with_problems_is_refused() -> None:
    spec = make_document("https://api.example.com")
    spec["http"]["poll"]["state"] = "["
    with pytest.raises(ValueError, match=r"http\.poll\.state"):
        build_upstream(ProviderSpec.model_validate(spec), "token", AddressPolicy())
