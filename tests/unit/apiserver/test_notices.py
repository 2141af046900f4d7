"""Notices of providers: verified, bounded, held up in a flood, handed on in a word."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette

from gateway_apiserver.surfaces.notices import (
    LONGEST_PAUSE,
    MOST_BYTES,
    RETRY_FOR_SECONDS,
    NoticeReceiver,
)
from gateway_core.providers.notices import ROOT, Notice, NoticeSigner, NoticeUndelivered
from gateway_web.middleware.requests import RequestMiddleware
from tests.fakes.clock import in_virtual_time

SIGNER = NoticeSigner(b"k" * 32)
NOTICE = Notice("task-abc", "5f0c1d9e-1111-4222-8333-444455556666")
PATH = SIGNER.sign(NOTICE)


class Sink:
    """Takes notices, or is away."""

    def __init__(self) -> None:
        self.taken: list[Notice] = []
        self.away = False

    async def deliver(self, notice: Notice) -> None:
        await asyncio.sleep(0.01)
        if self.away:
            raise NoticeUndelivered("away")
        self.taken.append(notice)


async def post(
    receiver: NoticeReceiver, path: str = PATH, *, body: bytes = b"{}", method: str = "POST"
) -> dict[str, Any]:
    """The answer's start; `body` comes in pieces of 16 KiB."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [],
    }
    sent: list[dict[str, Any]] = []

    async def pieces() -> AsyncIterator[dict[str, Any]]:
        for begin in range(0, len(body) or 1, 16384):
            more = begin + 16384 < len(body)
            part = body[begin : begin + 16384]
            yield {"type": "http.request", "body": part, "more_body": more}

    stream = pieces()

    async def send(message: Any) -> None:
        sent.append(message)

    app = Starlette()
    receiver.add_to(app.router.routes)
    app.state.authorizer = None
    served = RequestMiddleware(app.router)
    scope["app"] = app
    await served(scope, stream.__anext__, send)
    assert scope["path"] == ROOT, "the address is a secret, which no later reader sees"
    return sent[0]


@in_virtual_time
async def test_valid_notice_is_delivered_once() -> None:
    sink = Sink()
    answer = await post(NoticeReceiver(SIGNER, sink))
    assert answer["status"] == 204
    assert sink.taken == [NOTICE]


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (PATH[:-1] + ("A" if PATH[-1] != "A" else "B"), "POST"),
        (PATH + "/x", "POST"),
        ("/notices/", "POST"),
        (PATH, "GET"),
        (PATH, "PUT"),
    ],
)
@in_virtual_time
async def test_invalid_address_is_404(path: str, method: str) -> None:
    sink = Sink()
    receiver = NoticeReceiver(SIGNER, sink)
    assert (await post(receiver, path, method=method))["status"] == 404
    assert sink.taken == []
    without_operator = NoticeReceiver(SIGNER, None)
    assert (await post(without_operator))["status"] == 404


@in_virtual_time
async def test_body_is_bounded_and_never_parsed() -> None:
    sink = Sink()
    receiver = NoticeReceiver(SIGNER, sink)
    assert (await post(receiver, body=b"x" * (MOST_BYTES + 1)))["status"] == 413
    assert sink.taken == []
    assert (await post(receiver, body=b"\xff" * MOST_BYTES))["status"] == 204


@in_virtual_time
async def test_flood_is_throttled_and_last_notice_delivered() -> None:
    sink = Sink()
    receiver = NoticeReceiver(SIGNER, sink)
    for _ in range(100):
        assert (await post(receiver))["status"] == 204
        await asyncio.sleep(0.02)
    flooded = len(sink.taken)
    assert flooded <= 6, "two a second"
    await asyncio.sleep(2)
    assert len(sink.taken) == flooded + 1
    await asyncio.sleep(10)
    assert len(sink.taken) == flooded + 1


@in_virtual_time
async def test_notices_of_tasks_are_independent() -> None:
    sink = Sink()
    receiver = NoticeReceiver(SIGNER, sink)
    notices = [Notice(f"task-{number}", NOTICE.uid) for number in range(50)]
    answers = await asyncio.gather(*(post(receiver, SIGNER.sign(notice)) for notice in notices))
    assert {answer["status"] for answer in answers} == {204}
    assert len(sink.taken) == 50


@in_virtual_time
async def test_undelivered_notice_is_503() -> None:
    sink = Sink()
    sink.away = True
    receiver = NoticeReceiver(SIGNER, sink)
    answer = await post(receiver)
    assert answer["status"] == 503
    assert (b"retry-after", b"5") in answer["headers"]
    sink.away = False
    await asyncio.sleep(5)
    assert (await post(receiver))["status"] == 204
    assert sink.taken == [NOTICE]


@in_virtual_time
async def test_acknowledged_notice_is_delivered_after_outage() -> None:
    sink = Sink()
    receiver = NoticeReceiver(SIGNER, sink)
    assert (await post(receiver))["status"] == 204
    sink.away = True
    assert (await post(receiver))["status"] == 204, "too soon: to be handed on a little later"
    await asyncio.sleep(60)
    assert sink.taken == [NOTICE]
    sink.away = False
    await asyncio.sleep(LONGEST_PAUSE + 1)
    assert sink.taken == [NOTICE, NOTICE]
    await asyncio.sleep(60)
    assert sink.taken == [NOTICE, NOTICE]


@in_virtual_time
async def test_delivery_is_given_up_after_ten_minutes() -> None:
    sink = Sink()
    receiver = NoticeReceiver(SIGNER, sink)
    await post(receiver)
    sink.away = True
    await post(receiver)
    await asyncio.sleep(RETRY_FOR_SECONDS + LONGEST_PAUSE)
    sink.away = False
    await asyncio.sleep(60)
    assert sink.taken == [NOTICE], "given up"
    assert (await post(receiver))["status"] == 204
    assert sink.taken == [NOTICE, NOTICE]
