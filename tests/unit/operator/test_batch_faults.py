"""Batches over what clients, providers and stores do wrong: one fault stays one fault."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import pytest

from gateway_core.batches.lines import Line, read_custom_id
from gateway_core.batches.results import STEP_LINES, LineResult, merge
from gateway_core.concurrency import FairSemaphore
from gateway_operator.batches import finalizing
from gateway_operator.batches.bounds import MOST_BYTES, Share, Window
from gateway_operator.batches.limiter import Allowance, ProviderLimiter
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.batch_harness import (
    BATCHES,
    PRICE,
    BatchStage,
    Judge,
    make_line,
    make_lines,
)

HALF = "\ud83d"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"custom_id": HALF}, "custom_id"),
        ({"body": {"model": HALF, "input": "x"}}, "body.model"),
        ({"body": {"model": "judge", "input": HALF}}, "body.input"),
        ({"body": {"model": "judge", "input": ["x", HALF]}}, "body.input"),
        ({"body": {"model": "judge", "input": [{"type": "text", "text": HALF}]}}, "body.input"),
        (
            {"body": {"model": "judge", "input": [{"type": "text", "text": "x", HALF: [1]}]}},
            "body.input",
        ),
        (
            {"body": {"model": "judge", "input": [{"type": "text", "text": "x", "n": 2**64}]}},
            "body.input",
        ),
    ],
)
def test_what_nobody_can_write_down_fails_a_batch_and_is_told(
    change: dict[str, Any], param: str
) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = BatchStage()
        await stage.boot()
        name = await stage.submit([make_line("r-0", "x"), {**make_line("r-1", "x"), **change}])
        status = await stage.finish_batch(name)
        told = [(e["code"], e["param"], e["line"]) for e in status["errors"]]
        assert told == [("invalid_value", param, 2)]

    run()


@in_virtual_time
async def test_a_method_that_is_no_text_fails_the_batch_and_no_more() -> None:
    stage = BatchStage()
    await stage.boot()
    name = await stage.submit([{**make_line("r-0", "x"), "url": HALF, "other": HALF}])
    status = await stage.finish_batch(name)
    assert [e["code"] for e in status["errors"]] == ["url_mismatch"]


@in_virtual_time
async def test_a_line_that_nobody_expected_ends_alone() -> None:
    judge = Judge()

    def fail(text: str, _times: int) -> None:
        if text == "text 3":
            raise TypeError("str is not valid UTF-8: surrogates not allowed")

    judge.errors_of = fail
    stage = BatchStage(judge)
    await stage.boot()
    name = await stage.submit(make_lines(500))
    status = await stage.finish_batch(name)
    assert status["counts"] == {"total": 500, "completed": 499, "failed": 1, "sent": 500}
    _, [error] = await stage.read_results(name)
    assert (error["custom_id"], error["response"]["status_code"]) == ("r-3", 500)
    assert error["response"]["body"]["error"]["code"] == "internal_error"
    assert judge.asked["text 3"] <= 3
    assert max(judge.asked[f"text {n}"] for n in range(500) if n != 3) == 1
    [lane] = stage.operator.batches.runner.limiters._limiters.values()  # type: ignore[attr-defined]
    assert lane.under_way == 0


@in_virtual_time
async def test_a_cancelled_batch_ends_while_the_counters_are_away() -> None:
    stage = BatchStage(Judge(latency=1.0))
    operator = await stage.boot()
    name = await stage.submit(make_lines(200))
    await stage.wait(lambda: len(stage.judge.bodies) > 20)
    await operator.kill()
    asked = sum(stage.judge.asked.values())
    stage.counters.away = True
    await stage.cancel_batch(name)
    await stage.boot_without_books()
    await stage.wait(lambda: stage.batch_status(name).get("phase") == "Cancelled", seconds=60)
    # and nothing more is asked for: nobody is sure of the hold
    assert sum(stage.judge.asked.values()) == asked
    stage.counters.away = False
    await stage.kill()


@in_virtual_time
async def test_a_batch_that_cannot_be_begun_in_its_window_fails() -> None:
    stage = BatchStage()
    await stage.boot()
    stage.counters.away = True
    with patch("gateway_core.batches.lifecycle.WINDOW_SECONDS", 60):
        name = await stage.submit(make_lines(5))
        await stage.wait(lambda: stage.batch_status(name).get("phase") == "Failed", seconds=120)
    assert [e["code"] for e in stage.batch_status(name)["errors"]] == ["batch_expired"]
    stage.counters.away = False
    await stage.kill()


@in_virtual_time
async def test_a_batch_that_is_deleted_goes_once_its_charge_is_counted() -> None:
    stage = BatchStage(Judge(latency=1.0))
    await stage.boot()
    name = await stage.submit(make_lines(50))
    await stage.wait(lambda: len(stage.judge.bodies) > 10)
    stage.counters.away = True
    await stage.kube.delete(BATCHES, name)
    await stage.wait(lambda: stage.batch_status(name).get("phase") == "Cancelled", seconds=60)
    await stage.pass_time(20)
    assert stage.is_batch_there(name)
    stage.counters.away = False
    await stage.wait(lambda: not stage.is_batch_there(name), seconds=60)
    assert await stage.balance() == (len(stage.judge.bodies) * PRICE, 0)


@in_virtual_time
async def test_no_batch_is_let_go_before_its_charge_is_counted() -> None:
    stage = BatchStage(Judge(latency=1.0))
    await stage.boot()
    name = await stage.submit(make_lines(20))
    await stage.wait(lambda: len(stage.judge.bodies) == 20)
    stage.counters.away = True
    await stage.wait(lambda: stage.batch_status(name).get("phase") == "Completed", seconds=60)
    await stage.pass_time(60)
    # one that were closed by now could be deleted, and its hold were nobody's
    assert stage.batch_status(name).get("work") is None
    await stage.kube.delete(BATCHES, name)
    await stage.pass_time(20)
    assert stage.is_batch_there(name)
    stage.counters.away = False
    await stage.wait(lambda: not stage.is_batch_there(name), seconds=60)
    assert await stage.balance() == (20 * PRICE, 0)
    await stage.kill()


@in_virtual_time
async def test_long_lines_that_were_never_run_are_read_beside_the_loop() -> None:
    beside, here, in_thread = list[str](), list[str](), False

    def read(data: bytes) -> str:
        custom_id = read_custom_id(data)
        (beside if in_thread else here).append(custom_id)
        return custom_id

    async def to_thread(call: Any, *args: Any) -> Any:
        nonlocal in_thread
        in_thread = True
        try:
            return call(*args)
        finally:
            in_thread = False

    stage = BatchStage(Judge(latency=100.0))
    await stage.boot()
    lines = make_lines(20)
    lines[15]["body"]["input"] = "long" * 20_000
    name = await stage.submit(lines)
    with (
        patch.object(finalizing, "read_custom_id", read),
        patch("asyncio.to_thread", to_thread),
    ):
        await stage.wait(lambda: bool(stage.judge.bodies))
        await stage.cancel_batch(name)
        await stage.finish_batch(name, seconds=900)
    _, errors = await stage.read_results(name)
    assert [e["custom_id"] for e in errors] == [f"r-{n}" for n in range(8, 20)]
    # and none is read where only those with an answer are told
    assert sorted(beside + here) == sorted(f"r-{n}" for n in range(8, 20))
    assert beside == ["r-15"]
    await stage.kill()


async def test_lines_that_were_never_run_are_told_in_small_steps() -> None:
    turns, told = 0, Counter[int]()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def list_lines() -> AsyncIterator[Line]:
        for number in range(1, 1001):
            yield Line(number, b"{}")

    async def list_results() -> AsyncIterator[LineResult]:
        for number in range(200, 300):
            yield LineResult(number, succeeded=True, text=b"")

    async def tell(line: Line) -> LineResult:
        told[turns] += 1
        return LineResult(line.number, succeeded=False, text=b"")

    counting = asyncio.create_task(count_turns())
    await asyncio.sleep(0)
    found = [result.number async for result in merge(list_lines(), list_results(), tell)]
    counting.cancel()
    assert found == list(range(1, 1001))
    assert told.total() == 900
    assert max(told.values()) <= STEP_LINES


@pytest.mark.parametrize("gives", ["a place that is left", "a provider that takes more"])
async def test_who_gives_up_in_the_instant_of_his_turn_holds_up_nobody(gives: str) -> None:
    lane = ProviderLimiter(Allowance(calls=1))
    await lane.enter("demo", "batch-1")
    given_up, waiting = (
        asyncio.create_task(lane.enter("demo", name)) for name in ("batch-1", "batch-2")
    )
    await asyncio.sleep(0)
    given_up.cancel()
    # before it is told of that
    if gives == "a place that is left":
        lane.leave()
    else:
        lane.allow(Allowance(calls=4, per_second=100))
    async with asyncio.timeout(5):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await given_up
    lane.leave()
    assert lane.under_way == (0 if gives == "a place that is left" else 1)


def test_a_run_has_only_so_many_bytes_under_way() -> None:
    window, size = Window(Share(FairSemaphore(MOST_BYTES), "demo")), 1024 * 1024
    for place in range(16):
        assert window.has_room()
        window.begin(place, size)
    assert not window.has_room()
    window.end(3, 100)
    assert window.has_room()
