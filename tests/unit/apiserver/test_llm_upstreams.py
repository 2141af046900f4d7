"""Providers that break off, stall or send damaged HTTP at any byte: what clients get and pay."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from gateway_core.billing.journal import CallRecord
from gateway_core.llm.formats.calls import Format, estimate_tokens
from tests.fakes.llm_cases import CASES, TEXTS, Case
from tests.servers.llm_dialects import ReadStream
from tests.servers.llm_provider import LlmProvider, Received, Reply
from tests.servers.world import wait_for
from tests.shares import IS_WHOLE
from tests.unit.apiserver.gateway import Answer, call
from tests.unit.apiserver.test_llm_calls import LlmGateway

STEP = 1 if IS_WHOLE else 11
"""Every so many-th byte is tried; each one by the tests of streams alone (`tests/unit/llm`)."""
AT_ONCE = 8
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
TEXT = "".join(TEXTS)

Send = Callable[[Reply, int], Awaitable[None]]


def encode(case: Case, *, chunked: bool = True) -> bytes:
    """The provider's response: two frames in each chunk, or all until the connection's end."""
    if not chunked:
        return HEAD + b"\r\n" + case.wire
    frames = re.findall(rb"(?s).+?(?:\r?\n){2}", case.wire)
    pairs = [b"".join(frames[start : start + 2]) for start in range(0, len(frames), 2)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(pair), pair) for pair in [*pairs, b""])
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks


def find_begin(wire: bytes) -> int:
    """Where the first frame begins."""
    begin = re.search(rb"\r\n\r\n(?:[0-9a-f]+\r\n)?", wire)
    assert begin is not None
    return begin.end()


@pytest.fixture(autouse=True)
def nothing_unforeseen_is_logged() -> Iterator[None]:
    with capture_logs() as lines:
        yield
    assert [line for line in lines if line["log_level"] in ("error", "critical")] == []


class Harness:
    """A gateway with one provider, to which the prompt of a call says what to send."""

    def __init__(self, case: Case, provider: LlmProvider) -> None:
        self._case = case
        self._provider = provider
        self.gateway = LlmGateway(provider)
        kind = "google" if case.upstream is Format.GOOGLE else "openai"
        declared: dict[str, Any] = {"baseUrl": f"{provider.url}/v1", "idleTimeoutSeconds": 1}
        if case.upstream is Format.RESPONSES:
            declared["hasResponses"] = True
        spec = {"type": kind, kind: declared}
        self.gateway.kube.put(
            "gatewayproviders", {"metadata": {"name": "provider-0"}, "spec": spec}
        )
        price = {"inputPerMillionMicros": 1_000_000, "outputPerMillionMicros": 2_000_000}
        routes = [{"name": "a", "providerName": "provider-0", "upstreamModel": "up-1"}]
        self.gateway.put_model("m", action="chat", routes=routes, prices=[price])
        for account in ("demo", "guest"):
            self.gateway.put_account(account, unlimited=True, requestsPerMinute=1_000_000)

    async def ask(self, number: int, key: str | None = None) -> Answer:
        path, query = self._case.target
        headers = [
            ("Authorization", f"Bearer {key or self.gateway.key}"),
            ("Content-Type", "application/json"),
        ]
        content = orjson.dumps(self._case.body).replace(b'"hi"', b'"%d"' % number)
        asking = call(self.gateway.app, "POST", path, headers=headers, content=content, query=query)
        return await asyncio.wait_for(asking, 20)

    async def ask_all(self, numbers: Iterable[int], at_once: int = AT_ONCE) -> dict[int, Answer]:
        """The answers by number; a whole one of another account keeps the circuit closed."""
        slots, answers = asyncio.Semaphore(at_once), dict[int, Answer]()

        async def ask(number: int) -> None:
            async with slots:
                answers[number] = await self.ask(number)

        whole = await self.ask(1_000_000, self.gateway.other_key)
        assert (self._case.read(whole.body).text, whole.status) == (TEXT, 200)
        await asyncio.gather(*map(ask, numbers))
        return answers

    async def end(self) -> list[CallRecord]:
        """The records of the asking account, once nothing is held or open."""

        async def is_settled() -> bool:
            return await self.gateway.held() == 0

        await wait_for(is_settled, what="the end of all reservations")
        await self.gateway.api_parts.llm_providers.close()
        await wait_for(lambda: self._provider.open_connections == 0, what="closed connections")
        records = [record for record in await self.gateway.close() if record.account == "demo"]
        return sorted(records, key=lambda record: int(record.call.rpartition("-")[2]))


@asynccontextmanager
async def serve(case: Case, send: Send) -> AsyncIterator[Harness]:
    """A harness whose provider does `send` for each number."""

    async def script(reply: Reply, received: Received) -> None:
        [number] = re.findall(rb'"(\d+)"', orjson.dumps(received.body))
        if number == b"1000000":
            await reply.raw(encode(case))
        else:
            await send(reply, int(number))

    async with LlmProvider(script) as provider:
        harness = Harness(case, provider)
        try:
            yield harness
        finally:
            harness.gateway.running.cancel()


def check(case: Case, answer: Answer, *statuses: int) -> ReadStream | None:
    """The stream of an answer in the form of its dialect; None for an error instead of one."""
    if answer.status == 200:
        return case.read(answer.body)
    assert answer.status in statuses, answer
    error = answer.json["error"]
    expected = answer.status if case.target[0].startswith("/v1beta") else "upstream_"
    assert error["code"] == expected or error["code"].startswith(expected)
    return None


def check_charge(record: CallRecord, got: ReadStream | None) -> None:
    """The charge is of what the provider reported, else of what the client has seen."""
    assert record.micros == record.input_tokens + 2 * record.output_tokens
    if got is None or (got.error is not None and not got.text):
        # neither an answer nor a beginning of one; frames that were not passed on may count
        assert record.output_tokens <= estimate_tokens(len(TEXT.encode()))
        return
    assert record.failed == (got.error is not None)
    if record.estimated:
        assert record.output_tokens >= estimate_tokens(len(got.text.encode()))
    else:
        assert record.input_tokens == 9
        assert record.output_tokens > 0


@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "until-close"])
@pytest.mark.parametrize("name", CASES)
async def test_response_that_breaks_off_at_any_byte_ends_with_an_error(
    name: str, chunked: bool
) -> None:
    case = CASES[name]
    wire = encode(case, chunked=chunked)
    begins_at = find_begin(wire)
    # another provider may answer until the first frame has come
    blank = re.compile(rb"\n\r?\n").search(wire, begins_at)
    assert blank is not None

    async def send(reply: Reply, number: int) -> None:
        await reply.raw(wire[:number])
        reply.cut()

    async with serve(case, send) as harness:
        answers = await harness.ask_all(range(0, len(wire), STEP), at_once=1)
        records = await harness.end()
    for (length, answer), record in zip(answers.items(), records, strict=True):
        got = check(case, answer, 502)
        # the blank line of a last frame may be missing
        if not begins_at < length < blank.end():
            assert (got is None) == (length <= begins_at)
        if got is not None:
            assert TEXT.startswith(got.text)
            # a stream may end well where its last, needless bytes alone are missing
            assert got.error is not None or got.text == TEXT
        check_charge(record, got)


async def test_response_that_stalls_ends_in_time_with_an_error() -> None:
    await asyncio.gather(*map(check_stalls, CASES.values()))


async def check_stalls(case: Case) -> None:
    wire = encode(case)
    head_ends_at = wire.index(b"\r\n\r\n") + 4
    begins_at = find_begin(wire)
    places = [
        0,
        20,
        begins_at - 4,
        begins_at,
        begins_at + 1,
        begins_at + 100,
        len(wire) // 2,
        len(wire) * 4 // 5,
    ]

    async def send(reply: Reply, number: int) -> None:
        await reply.raw(wire[:number])
        await asyncio.Event().wait()

    async with serve(case, send) as harness:
        answers = await harness.ask_all(places, at_once=len(places))
        assert len(await harness.end()) == len(places)
    for place, answer in answers.items():
        got = check(case, answer, 504)
        # the client's head does not wait long for a frame
        assert (got is None) == (place < head_ends_at)
        if got is not None:
            assert got.error
            assert got.error["code"] in (504, "upstream_timeout")
            assert TEXT.startswith(got.text)


async def test_response_with_a_wrong_byte_keeps_the_form_of_its_dialect() -> None:
    await asyncio.gather(*map(check_wrong_bytes, CASES.values()))


async def check_wrong_bytes(case: Case) -> None:
    wire = encode(case)

    async def send(reply: Reply, place: int) -> None:
        await reply.raw(wire[:place] + bytes([wire[place] ^ 1 << place % 8]) + wire[place + 1 :])

    async with serve(case, send) as harness:
        answers = await harness.ask_all(range(0, len(wire), STEP))
        assert len(await harness.end()) == len(answers)
    for answer in answers.values():
        check(case, answer, 400, 502, 503, 504)
    statuses = Counter(answer.status for answer in answers.values())
    assert statuses[200] > statuses[502] > 0
