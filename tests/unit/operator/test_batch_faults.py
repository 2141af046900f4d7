"""Batches over what clients, providers and stores do wrong: one fault stays one fault."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from gateway_core.api.resource import Object
from gateway_core.api.usage import GatewayUsage
from gateway_core.batches.lines import Line, read_custom_id
from gateway_core.batches.results import STEP_LINES, LineResult, merge
from gateway_core.fair_semaphore import FairSemaphore
from gateway_operator.batches import finalizing
from gateway_operator.batches.bounds import MOST_BYTES, Share, Window
from gateway_operator.batches.finalizing import Finalizing
from gateway_operator.batches.limiter import Allowance, ProviderLimiter
from gateway_operator.batches.validation import BatchHolds
from gateway_operator.reconciler import Superseded
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.batch_harness import (
    BATCHES,
    PRICE,
    BatchSimulation,
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
        ({"body": {"model": "judge", "input": ["x", HALF]}}, "body.input"),
    ],
)
@in_virtual_time
async def test_unreadable_line_fails_the_batch_with_its_problem(
    change: dict[str, Any], param: str
) -> None:
    sim = await BatchSimulation.start()
    name = await sim.submit([make_line("r-0", "x"), {**make_line("r-1", "x"), **change}])
    status = await sim.finish_batch(name)
    told = [(e["code"], e["param"], e["line"]) for e in status["errors"]]
    assert told == [("invalid_value", param, 2)]


@in_virtual_time
async def test_unexpected_exception_fails_one_line() -> None:
    judge = Judge()

    def fail(text: str, _times: int) -> None:
        if text == "text 3":
            raise TypeError("str is not valid UTF-8: surrogates not allowed")

    judge.errors_of = fail
    sim = await BatchSimulation.start(judge)
    name = await sim.submit(make_lines(500))
    status = await sim.finish_batch(name)
    assert status["counts"] == {"total": 500, "completed": 499, "failed": 1, "sent": 500}
    _, [error] = await sim.read_results(name)
    assert (error["custom_id"], error["response"]["status_code"]) == ("r-3", 500)
    assert error["response"]["body"]["error"]["code"] == "internal_error"
    assert judge.asked["text 3"] <= 3
    assert max(judge.asked[f"text {n}"] for n in range(500) if n != 3) == 1
    [lane] = sim.running.batches.runner.limiters._limiters.values()
    assert lane.under_way == 0


@in_virtual_time
async def test_cancelled_batch_ends_while_the_counters_are_away() -> None:
    sim = BatchSimulation(Judge(latency=1.0))
    operator = await sim.boot()
    name = await sim.submit(make_lines(200))
    await sim.wait(lambda: len(sim.judge.bodies) > 20)
    await operator.kill()
    asked = sum(sim.judge.asked.values())
    sim.counters.away = True
    await sim.cancel_batch(name)
    await sim.boot_without_books()
    await sim.wait(lambda: sim.batch_status(name).get("phase") == "Cancelled", seconds=60)
    # and nothing more is asked for: nobody is sure of the hold
    assert sum(sim.judge.asked.values()) == asked
    sim.counters.away = False


@in_virtual_time
async def test_batch_that_cannot_start_in_its_window_fails() -> None:
    sim = await BatchSimulation.start()
    sim.counters.away = True
    with patch("gateway_core.batches.lifecycle.WINDOW_SECONDS", 60):
        name = await sim.submit(make_lines(5))
        await sim.wait(lambda: sim.batch_status(name).get("phase") == "Failed", seconds=120)
    assert [e["code"] for e in sim.batch_status(name)["errors"]] == ["batch_expired"]
    sim.counters.away = False


@in_virtual_time
async def test_deleted_batch_goes_after_its_charge_is_aggregated() -> None:
    sim = await BatchSimulation.start(Judge(latency=1.0))
    name = await sim.submit(make_lines(50))
    await sim.wait(lambda: len(sim.judge.bodies) > 10)
    sim.counters.away = True
    await sim.kube.delete(BATCHES, name)
    await sim.wait(lambda: sim.batch_status(name).get("phase") == "Cancelled", seconds=60)
    await sim.pass_time(20)
    assert sim.is_batch_there(name)
    sim.counters.away = False
    await sim.wait(lambda: not sim.is_batch_there(name), seconds=60)
    assert await sim.balance() == (len(sim.judge.bodies) * PRICE, 0)


@in_virtual_time
async def test_finalizer_stays_until_charge_is_aggregated() -> None:
    sim = await BatchSimulation.start(Judge(latency=1.0))
    name = await sim.submit(make_lines(20))
    await sim.wait(lambda: len(sim.judge.bodies) == 20)
    sim.counters.away = True
    await sim.wait(lambda: sim.batch_status(name).get("phase") == "Completed", seconds=60)
    await sim.pass_time(60)
    [usage] = sim.kube.list_objects(GatewayUsage.plural)
    assert usage["status"]["chargedMicros"] == 20 * PRICE, "which does not need the counters"
    # one that were closed by now could be deleted, and its hold were nobody's
    assert sim.batch_status(name).get("work") is None
    await sim.kube.delete(BATCHES, name)
    await sim.pass_time(20)
    assert sim.is_batch_there(name)
    sim.counters.away = False
    await sim.wait(lambda: not sim.is_batch_there(name), seconds=60)
    assert await sim.balance() == (20 * PRICE, 0)


@in_virtual_time
async def test_long_unrun_lines_are_parsed_in_a_thread() -> None:
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

    sim = await BatchSimulation.start(Judge(latency=100.0))
    lines = make_lines(20)
    lines[15]["body"]["input"] = "long" * 20_000
    name = await sim.submit(lines)
    with (
        patch.object(finalizing, "read_custom_id", read),
        patch("asyncio.to_thread", to_thread),
    ):
        await sim.wait(lambda: bool(sim.judge.bodies))
        await sim.cancel_batch(name)
        await sim.finish_batch(name, seconds=900)
    _, errors = await sim.read_results(name)
    assert [e["custom_id"] for e in errors] == [f"r-{n}" for n in range(8, 20)]
    # and none is read where only those with an answer are told
    assert sorted(beside + here) == sorted(f"r-{n}" for n in range(8, 20))
    assert beside == ["r-15"]


async def test_unrun_lines_are_rendered_in_small_steps() -> None:
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
async def test_waiter_cancelled_at_its_turn_returns_the_slot(gives: str) -> None:
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


def test_bytes_in_flight_of_a_run_are_bounded() -> None:
    window, size = Window(Share(FairSemaphore(MOST_BYTES), "demo")), 1024 * 1024
    for place in range(16):
        assert window.has_room()
        window.begin(place, size)
    assert not window.has_room()
    window.end(3, 100)
    assert window.has_room()


async def test_late_hold_of_a_batch_that_has_ended_is_given_back() -> None:
    """Another owner has settled its hold while this one was halted."""
    released: list[str] = []

    async def hold(*_: Any) -> bool:
        return True

    async def release(_: str, name: str) -> None:
        released.append(name)

    async def refresh(_: str) -> None:
        return None

    request = SimpleNamespace(account_name="demo", key_name="key-a", guardrail_names=None)
    batch: Any = SimpleNamespace(
        metadata=SimpleNamespace(name="batch-a"),
        spec=SimpleNamespace(request=request),
        status=SimpleNamespace(reserved_micros=5),
    )
    reservations: Any = SimpleNamespace(counters=SimpleNamespace(hold=hold), release=release)
    store: Any = SimpleNamespace(refresh=refresh)
    unused: Any = None
    with pytest.raises(Superseded):
        await BatchHolds(store, unused, reservations).ensure(batch)
    assert released == ["batch-a"]


async def test_file_made_for_a_batch_that_has_ended_is_deleted() -> None:
    """Another owner ended the batch, and its client has deleted the File of this name since."""
    deleted: list[Object] = []

    async def delete(file: Object) -> None:
        deleted.append(file)

    async def refresh(_: str) -> None:
        return None

    unused: Any = None
    store: Any = SimpleNamespace(refresh=refresh)
    files: Any = SimpleNamespace(delete=delete)
    ending = Finalizing(unused, store, unused, files, unused, unused, unused, unused)
    batch: Any = SimpleNamespace(metadata=SimpleNamespace(name="batch-a"))
    file = {"metadata": {"name": "file-a"}}
    with pytest.raises(Superseded):
        await ending._delete_if_late(batch, file)
    assert deleted == [file]
