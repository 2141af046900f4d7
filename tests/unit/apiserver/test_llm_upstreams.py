"""Providers that break off, stall or send damaged HTTP at any byte: what clients get and pay."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gateway_core.billing.journal import CallRecord
from gateway_core.llm.formats.calls import estimate_tokens
from tests.fakes.llm_cases import CASES, TEXTS, Case
from tests.servers.llm_dialects import ReadStream
from tests.servers.llm_provider import Reply
from tests.shares import IS_WHOLE
from tests.unit.apiserver.gateway import Answer
from tests.unit.apiserver.llm_gateway import shorten_idle_time
from tests.unit.apiserver.llm_harness import TEXT, encode, serve

STEP, WRONG_STEP = (1, 1) if IS_WHOLE else (97, 31)
"""Every so many-th byte is tried; each one by the tests of streams alone (`tests/unit/llm`)."""


def find_output(wire: bytes) -> range:
    """Where the data and the blank line of the first frame with text end."""
    text_at = wire.index(TEXTS[0].encode())
    end = re.compile(rb"\n\r?\n").search(wire, text_at)
    assert end is not None
    return range(end.start(), end.end())


@pytest.fixture(autouse=True)
def no_error_is_logged() -> Iterator[None]:
    with capture_logs() as lines:
        yield
    assert [line for line in lines if line["log_level"] in ("error", "critical")] == []


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
    # another provider may answer until the first frame with text has come
    output = find_output(wire)

    async def send(reply: Reply, number: int) -> None:
        await reply.raw(wire[:number])
        reply.cut()

    async with serve(case, send) as harness:
        answers = await harness.ask_all(range(0, len(wire), STEP), at_once=1)
        records = await harness.end()
    for (length, answer), record in zip(answers.items(), records, strict=True):
        got = check(case, answer, 502)
        # the blank line of a last frame may be missing
        if length not in output:
            assert (got is None) == (length < output.start)
        if got is not None:
            assert TEXT.startswith(got.text)
            # a stream may end well where its last, needless bytes alone are missing
            assert got.error is not None or got.text == TEXT
        check_charge(record, got)


@pytest.mark.parametrize("name", CASES)
async def test_response_that_stalls_ends_in_time_with_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_idle_time(monkeypatch)
    case = CASES[name]
    wire = encode(case)
    output = find_output(wire)
    places = [0, 20, output.start - 100, output.start - 1, output.stop, output.stop + 1]
    places += [len(wire) // 2, len(wire) * 4 // 5]

    async def send(reply: Reply, number: int) -> None:
        await reply.raw(wire[:number])
        await asyncio.Event().wait()

    async with serve(case, send) as harness:
        answers = await harness.ask_all(places, at_once=len(places))
        assert len(await harness.end()) == len(places)
    for place, answer in answers.items():
        got = check(case, answer, 504)
        assert (got is None) == (place < output.stop)
        if got is not None:
            assert got.error
            assert got.error["code"] in (504, "upstream_timeout")
            assert TEXT.startswith(got.text)


@pytest.mark.parametrize("name", CASES)
async def test_response_with_a_wrong_byte_keeps_the_form_of_its_dialect(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_idle_time(monkeypatch)
    case = CASES[name]
    wire = encode(case)

    async def send(reply: Reply, place: int) -> None:
        await reply.raw(wire[:place] + bytes([wire[place] ^ 1 << place % 8]) + wire[place + 1 :])

    async with serve(case, send) as harness:
        answers = await harness.ask_all(range(0, len(wire), WRONG_STEP))
        assert len(await harness.end()) == len(answers)
    for answer in answers.values():
        check(case, answer, 400, 502, 503, 504)
    statuses = Counter(answer.status for answer in answers.values())
    assert statuses[200] > statuses[502] > 0
