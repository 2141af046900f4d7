"""An operator that is asked to end leaves nothing behind that its successor cannot tell."""

import asyncio

import pytest

from gateway_core.ports.upstream import SubmissionGuarantee
from gateway_operator.controllers.tasks.controller import CALL_SECONDS, MOMENT_SECONDS
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.stage import QUOTE, Operator, Stage

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


@in_virtual_time
async def test_an_end_takes_no_longer_than_it_is_granted() -> None:
    stage = Stage(FakeUpstream(NONE, latency=1000.0))
    operator = await stage.boot()
    name = await stage.admit()
    await stage.wait(lambda: stage.status(name))
    began = now()
    await operator.end()
    assert now() - began <= MOMENT_SECONDS + CALL_SECONDS + MOMENT_SECONDS < 30
