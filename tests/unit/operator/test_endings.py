"""An operator that is asked to end leaves nothing behind that its successor cannot tell."""

import asyncio

import pytest

from gateway_core.billing.counters import Hold
from gateway_core.providers.upstream import SubmissionGuarantee
from gateway_operator.tasks.controller import CALL_SECONDS, MOMENT_SECONDS
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.harness import QUOTE, Operator, Stage

KEY, LOOKUP, NONE = (
    SubmissionGuarantee.IDEMPOTENCY_KEY,
    SubmissionGuarantee.LOOKUP,
    SubmissionGuarantee.NONE,
)
EVERY = pytest.mark.parametrize("guarantee", [KEY, LOOKUP, NONE])


def now() -> float:
    return asyncio.get_running_loop().time()


async def roll(stage: Stage) -> Operator:
    """Ends the operator as a rollout does, and starts its successor."""
    assert stage.operator is not None
    await stage.operator.end()
    return await stage.boot_without_books()


@EVERY
@pytest.mark.parametrize("latency", [0.5, 10.0])
def test_a_submission_under_way_is_brought_to_its_end(
    guarantee: SubmissionGuarantee, latency: float
) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage(FakeUpstream(guarantee, latency=latency))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.status(name))
        await roll(stage)
        assert stage.status(name)["phase"] == "Running"
        assert (await stage.finish(name, seconds=120))["phase"] == "Completed"
        assert stage.count_jobs(name) == 1
        assert await stage.balance() == (QUOTE, 0)

    run()


@EVERY
def test_a_task_the_provider_had_no_room_for_goes_on_at_once(
    guarantee: SubmissionGuarantee,
) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage(FakeUpstream(guarantee, retry_after=60.0, submit_seconds=300.0))
        stage.upstream.submissions.append(Outcome.BUSY)
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.upstream.calls)
        await stage.pass_time(10)
        await roll(stage)
        assert (await stage.finish(name, seconds=20))["phase"] == "Completed"
        assert stage.count_jobs(name) == 1
        stage.check_history()

    run()


@in_virtual_time
async def test_an_unclear_outcome_is_not_withdrawn() -> None:
    stage = Stage(FakeUpstream(NONE))
    stage.upstream.submissions.append(Outcome.UNCLEAR_WITH_JOB)
    await stage.boot()
    name = await stage.admit()
    await stage.wait(lambda: stage.upstream.jobs)
    await stage.pass_time(1)
    await roll(stage)
    assert (await stage.finish(name))["failure"]["code"] == "submission_unknown"
    assert stage.count_jobs(name) == 1


@in_virtual_time
async def test_nothing_more_is_begun() -> None:
    stage = Stage(FakeUpstream(NONE, latency=2.0))
    operator = await stage.boot()
    first = await stage.admit()
    await stage.wait(lambda: stage.status(first))
    operator.feed.ended = True
    ending = asyncio.create_task(operator.controller.end())
    await stage.pass_time(0.1)
    second = await stage.admit()
    operator.controller.observe("ADDED", stage.history[second][-1])
    await ending
    assert stage.status(first)["phase"] == "Running"
    assert not stage.status(second)
    assert stage.upstream.count("submit") == 1


def slow_down_holds(stage: Stage, task: str, seconds: float) -> None:
    """Has the counters take so long for one task's hold, once."""
    real, slow = stage.counters.hold, {task}

    async def hold(account: str, wanted: Hold) -> bool:
        if wanted.task in slow:
            slow.discard(wanted.task)
            await asyncio.sleep(seconds)
        return await real(account, wanted)

    stage.counters.hold = hold  # type: ignore[method-assign]


@EVERY
@pytest.mark.parametrize("seconds", [1.0, 2.99, 3.3])
def test_a_task_that_is_still_being_taken_in_is_left_to_the_successor(
    guarantee: SubmissionGuarantee, seconds: float
) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage(FakeUpstream(guarantee, latency=4.0))
        await stage.boot()
        first = await stage.admit()
        await stage.wait(lambda: stage.status(first))
        second = await stage.admit()
        slow_down_holds(stage, second, seconds)
        await stage.pass_time(0.05)
        assert stage.operator is not None
        await stage.operator.end()
        assert stage.status(first)["phase"] == "Running"
        assert not stage.status(second), "no intent is recorded while ending"
        await stage.boot_without_books()
        for name in (first, second):
            assert (await stage.finish(name, seconds=200))["phase"] == "Completed"
            assert stage.count_jobs(name) == 1

    run()


@pytest.mark.parametrize("moment", [0.0005, 0.001, 0.002, 0.003, 0.004, 0.005])
def test_an_intent_on_its_way_is_followed_by_its_call(moment: float) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage(FakeUpstream(NONE, latency=1.0), lag=0.0)
        await stage.boot()
        name = await stage.admit()
        await stage.pass_time(moment)
        await roll(stage)
        assert (await stage.finish(name, seconds=200))["phase"] == "Completed"
        assert stage.count_jobs(name) == 1

    run()


@in_virtual_time
async def test_an_intent_whose_write_is_slow_is_not_cut_short() -> None:
    stage = Stage(FakeUpstream(NONE))
    await stage.boot()
    stage.kube.latency = 8.0
    name = await stage.admit()
    await stage.pass_time(1)
    await roll(stage)
    stage.kube.latency = 0.004
    assert (await stage.finish(name, seconds=200))["phase"] == "Completed"
    assert stage.count_jobs(name) == 1


@in_virtual_time
async def test_what_is_still_being_worked_is_not_withdrawn() -> None:
    """Its call may be about to be made."""
    stage = Stage(FakeUpstream(NONE))
    stage.slow_store(2.0)
    operator = await stage.boot()
    name = await stage.admit_stored(b'{"prompt":"long"}')
    await stage.wait(lambda: "upstream" in stage.status(name))
    await stage.pass_time(1)
    await operator.controller._submission.withdraw()
    assert stage.status(name)["upstream"]["intentTime"]
    assert (await stage.finish(name))["phase"] == "Completed"
    assert stage.count_jobs(name) == 1


@in_virtual_time
async def test_an_end_takes_no_longer_than_it_is_granted() -> None:
    stage = Stage(FakeUpstream(NONE, latency=1000.0))
    operator = await stage.boot()
    name = await stage.admit()
    await stage.wait(lambda: stage.status(name))
    began = now()
    await operator.end()
    assert now() - began <= MOMENT_SECONDS + CALL_SECONDS + MOMENT_SECONDS < 30
