"""An operator that is asked to end leaves nothing behind that its successor cannot tell."""

import asyncio

import pytest

from gateway_core.billing.counters import Hold
from gateway_core.providers.upstream import SubmissionGuarantee
from gateway_operator.tasks.controller import CALL_SECONDS, MOMENT_SECONDS
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.harness import QUOTE, Operator, Simulation

KEY, LOOKUP, NONE = SubmissionGuarantee
EVERY = pytest.mark.parametrize("guarantee", SubmissionGuarantee)


def now() -> float:
    return asyncio.get_running_loop().time()


async def roll(sim: Simulation) -> Operator:
    """Ends the operator as a rollout does, and starts its successor."""
    await sim.running.end()
    return await sim.boot_without_books()


@EVERY
@pytest.mark.parametrize("latency", [0.5, 10.0])
@in_virtual_time
async def test_running_submission_is_completed_during_drain(
    guarantee: SubmissionGuarantee, latency: float
) -> None:
    sim = await Simulation.start(FakeUpstream(guarantee, latency=latency))
    name = await sim.admit()
    await sim.wait(lambda: sim.status(name))
    await roll(sim)
    assert sim.status(name)["phase"] == "Running"
    assert (await sim.finish(name, seconds=120))["phase"] == "Completed"
    assert sim.count_jobs(name) == 1
    assert await sim.balance() == (QUOTE, 0)


@EVERY
@in_virtual_time
async def test_refused_submission_is_retried_by_successor_at_once(
    guarantee: SubmissionGuarantee,
) -> None:
    sim = await Simulation.start(FakeUpstream(guarantee, retry_after=60.0, submit_seconds=300.0))
    sim.upstream.submissions.append(Outcome.BUSY)
    name = await sim.admit()
    await sim.wait(lambda: sim.upstream.calls)
    await sim.pass_time(10)
    await roll(sim)
    assert (await sim.finish(name, seconds=20))["phase"] == "Completed"
    assert sim.count_jobs(name) == 1
    sim.check_history()


@in_virtual_time
async def test_intent_is_withdrawn_though_the_task_has_changed_meanwhile() -> None:
    sim = Simulation(FakeUpstream(NONE, retry_after=60.0, submit_seconds=300.0), lag=60)
    operator = await sim.boot()
    sim.upstream.submissions.append(Outcome.BUSY)
    name = await sim.admit()
    sim.show(name)
    await sim.wait(lambda: sim.upstream.calls)
    await sim.pass_time(10)
    await sim.change(name, {"metadata": {"annotations": {"note": "x"}}})
    await operator.end()
    assert not sim.status(name).get("upstream")


@in_virtual_time
async def test_unclear_outcome_is_not_withdrawn() -> None:
    sim = await Simulation.start(FakeUpstream(NONE))
    sim.upstream.submissions.append(Outcome.UNCLEAR_WITH_JOB)
    name = await sim.admit()
    await sim.wait(lambda: sim.upstream.jobs)
    await sim.pass_time(1)
    await roll(sim)
    assert (await sim.finish(name))["failure"]["code"] == "submission_unknown"
    assert sim.count_jobs(name) == 1


@in_virtual_time
async def test_drain_begins_no_new_task() -> None:
    sim = Simulation(FakeUpstream(NONE, latency=2.0))
    operator = await sim.boot()
    first = await sim.admit()
    await sim.wait(lambda: sim.status(first))
    operator.feed.ended = True
    ending = asyncio.create_task(operator.controller.end())
    await sim.pass_time(0.1)
    second = await sim.admit()
    operator.controller.observe("ADDED", sim.history[second][-1])
    await ending
    assert sim.status(first)["phase"] == "Running"
    assert not sim.status(second)
    assert sim.upstream.count("submit") == 1


def slow_down_holds(sim: Simulation, task: str, seconds: float) -> None:
    """Has the counters take so long for one task's hold, once."""
    real, slow = sim.counters.hold, {task}

    async def hold(account: str, wanted: Hold) -> bool:
        if wanted.task in slow:
            slow.discard(wanted.task)
            await asyncio.sleep(seconds)
        return await real(account, wanted)

    sim.counters.hold = hold  # type: ignore[method-assign]


@EVERY
@pytest.mark.parametrize("seconds", [1.0, 2.99, 3.3])
@in_virtual_time
async def test_adoption_in_progress_is_left_to_successor(
    guarantee: SubmissionGuarantee, seconds: float
) -> None:
    sim = await Simulation.start(FakeUpstream(guarantee, latency=4.0))
    first = await sim.admit()
    await sim.wait(lambda: sim.status(first))
    second = await sim.admit()
    slow_down_holds(sim, second, seconds)
    await sim.pass_time(0.05)
    await sim.running.end()
    assert sim.status(first)["phase"] == "Running"
    assert not sim.status(second), "no intent is recorded while ending"
    await sim.boot_without_books()
    for name in (first, second):
        assert (await sim.finish(name, seconds=200))["phase"] == "Completed"
        assert sim.count_jobs(name) == 1


@pytest.mark.parametrize("moment", [0.0005, 0.001, 0.002, 0.003, 0.004, 0.005])
@in_virtual_time
async def test_intent_being_written_is_followed_by_its_call(moment: float) -> None:
    sim = await Simulation.start(FakeUpstream(NONE, latency=1.0), lag=0.0)
    name = await sim.admit()
    await sim.pass_time(moment)
    await roll(sim)
    assert (await sim.finish(name, seconds=200))["phase"] == "Completed"
    assert sim.count_jobs(name) == 1


@in_virtual_time
async def test_slow_write_of_intent_is_not_cut_short() -> None:
    sim = await Simulation.start(FakeUpstream(NONE))
    sim.kube.latency = 8.0
    name = await sim.admit()
    await sim.pass_time(1)
    await roll(sim)
    sim.kube.latency = 0.004
    assert (await sim.finish(name, seconds=200))["phase"] == "Completed"
    assert sim.count_jobs(name) == 1


@in_virtual_time
async def test_intent_of_task_being_worked_is_not_withdrawn() -> None:
    """Its call may be about to be made."""
    sim = Simulation(FakeUpstream(NONE))
    sim.slow_store(2.0)
    operator = await sim.boot()
    name = await sim.admit_stored(b'{"prompt":"long"}')
    await sim.wait(lambda: "upstream" in sim.status(name))
    await sim.pass_time(1)
    await operator.controller._submission.withdraw()
    assert sim.status(name)["upstream"]["intentTime"]
    assert (await sim.finish(name))["phase"] == "Completed"
    assert sim.count_jobs(name) == 1


@in_virtual_time
async def test_drain_ends_within_the_grace_period() -> None:
    sim = Simulation(FakeUpstream(NONE, latency=1000.0))
    operator = await sim.boot()
    name = await sim.admit()
    await sim.wait(lambda: sim.status(name))
    began = now()
    await operator.end()
    assert now() - began <= MOMENT_SECONDS + CALL_SECONDS + MOMENT_SECONDS < 30
