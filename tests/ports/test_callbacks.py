"""What every sender of callbacks promises, asked of the real one and of the fake."""

import asyncio
import time
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Protocol

import pytest
from aiohttp import web

from gateway_core.callbacks.client import CallbackAnswer, CallbackSender
from gateway_core.callbacks.signing import make_headers
from gateway_core.egress.addresses import AddressPolicy
from tests.fakes.callbacks import FakeSender, make_answer
from tests.servers.receivers import Receiver, answer, hang

PATIENCE = 60.0
"""For answers that come at once: what counts as soon is a third of it, and a machine may stand."""
LIMIT, LATE = 3.0, 1.2
"""The time for an attempt, and when the answer comes that is late and counts."""
SHORT = 0.3
"""The time for an attempt that nobody answers."""
BODY = b'{"id":"task_a","status":"completed"}'
HEADERS = make_headers([b"k" * 32], "msg_a", 1_800_000_000, BODY)
LOOPBACK = AddressPolicy(allowed=(ip_network("127.0.0.0/8"),))


class Ways(Protocol):
    """A sender, and addresses that answer it, late or never."""

    sender: CallbackSender

    def answers(self, status: int, retry_after: int | None = None) -> str: ...

    def answers_late(self) -> str:
        """After more than a third of the time, which is `LIMIT` from here on."""
        ...

    def hangs(self) -> str:
        """For ever; the time is `SHORT` from here on."""
        ...


class FakeWays(Ways):
    def __init__(self) -> None:
        self.sender = self.fake = FakeSender(timeout=PATIENCE)

    def answers(self, status: int, retry_after: int | None = None) -> str:
        self.fake.receivers["http://a/"].will(make_answer(status, retry_after))
        return "http://a/"

    def answers_late(self) -> str:
        self.fake.timeout = LIMIT
        self.fake.receivers["http://c/"].seconds = LATE
        return "http://c/"

    def hangs(self) -> str:
        self.fake.timeout = SHORT
        self.fake.receivers["http://b/"].seconds = 60
        return "http://b/"


class RealWays(Ways):
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.sender = self.http = CallbackSender(LOOPBACK, timeout=PATIENCE)

    def answers(self, status: int, retry_after: int | None = None) -> str:
        headers = {} if retry_after is None else {"Retry_After": str(retry_after)}
        return self.receiver.plan("a", answer(status, **headers))

    def answers_late(self) -> str:
        async def answer_late(request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(LATE)
            return await answer(200)(request)

        self.http._timeout = LIMIT
        return self.receiver.plan("c", answer_late)

    def hangs(self) -> str:
        self.http._timeout = SHORT
        return self.receiver.plan("b", hang)


@pytest.fixture(params=["fake", "http"])
async def ways(request: pytest.FixtureRequest) -> AsyncIterator[Ways]:
    if request.param == "fake":
        yield FakeWays()
        return
    async with Receiver() as receiver:
        real = RealWays(receiver)
        yield real
        await real.sender.close()


@pytest.mark.parametrize("status", [200, 204, 299, 302, 404, 410, 500])
async def test_status_of_an_answer_is_recorded(ways: Ways, status: int) -> None:
    told = await ways.sender.send(ways.answers(status), HEADERS, BODY)
    text = f"answered {status}"
    if status == 302:
        text += ", and redirects are not followed"
    assert told == CallbackAnswer(status, text)


@pytest.mark.parametrize("status", [429, 503])
async def test_requested_pause_is_recorded(ways: Ways, status: int) -> None:
    told = await ways.sender.send(ways.answers(status, 7), HEADERS, BODY)
    assert (told.status, told.retry_after) == (status, 7)


async def test_late_answer_counts_and_is_costly(ways: Ways) -> None:
    told = await ways.sender.send(ways.answers_late(), HEADERS, BODY)
    assert told == CallbackAnswer(200, "answered 200", is_costly=True)


async def test_silence_has_an_end(ways: Ways) -> None:
    begin = time.monotonic()
    told = await ways.sender.send(ways.hangs(), HEADERS, BODY)
    assert told == CallbackAnswer(None, f"no answer within {SHORT:g} s", is_costly=True)
    assert time.monotonic() - begin < 60
