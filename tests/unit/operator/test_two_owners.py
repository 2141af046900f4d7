"""Two operators that both watch a shard, as while shards move: a task's paid job is one (I2).

The first one's call to the provider takes long, so that its job is on no record; the second sees
the task created too, and the provider or the limits differently.
"""

import pytest

from gateway_core.api.provider import ProviderSpec
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Job, Outcome
from tests.unit.operator.harness import ROUTE, TASKS, Operator, Simulation


async def boot_owners(
    sim: Simulation, second: FakeUpstream, other: FakeUpstream, *, lag: float = 0.01
) -> Operator:
    """Starts both; the second reaches `simulated` through its own `second`; the first owner."""
    first = await sim.boot()
    await first.providers.find("simulated")

    def build(spec: ProviderSpec, _: str | None) -> FakeUpstream:
        return other if spec.type == "other" else second

    sim.build_upstream = build  # type: ignore[method-assign]
    sim.put_provider("other", type="other")
    names = (("simulated", "q4"), ("other", "z9"))
    sim.put_model(
        routes=[{"name": p, "providerName": p, "upstreamModel": model} for p, model in names]
    )
    sim.boot_twin(lag)
    return first


def break_off() -> FakeUpstream:
    """The provider as an owner sees it that cannot use it."""
    return FakeUpstream(problem="its library is missing")


@in_virtual_time
async def test_second_owner_does_not_submit_to_another_provider() -> None:
    sim, other = Simulation(FakeUpstream(latency=2.0)), FakeUpstream()
    await boot_owners(sim, break_off(), other)
    name = await sim.admit(route=ROUTE)
    status = await sim.finish(name)
    assert status["phase"] == "Completed"
    assert status["upstream"]["providerName"] == "simulated"
    assert status["upstream"]["jobId"] == sim.upstream.jobs[0].id
    assert sim.count_jobs(name) == 1
    assert other.submitted == []
    sim.check_history()


@in_virtual_time
async def test_limit_does_not_fail_task_that_another_owner_submits() -> None:
    sim = Simulation(FakeUpstream(latency=20.0, submit_seconds=25.0))
    sim.put_key(limit={"micros": 1_000_000, "window": "weekly"})
    await boot_owners(sim, break_off(), FakeUpstream(), lag=7.0)
    name = await sim.admit(route=ROUTE, keyName="key-a")
    await sim.pass_time(1)
    sim.put_key(limit={"micros": 10_000, "window": "weekly"})
    assert (await sim.finish(name, seconds=300))["phase"] == "Completed"
    assert sim.count_jobs(name) == 1
    sim.check_history()


@in_virtual_time
async def test_limit_fails_routed_task_once_no_other_call_can_be_under_way() -> None:
    sim = Simulation()
    sim.put_key(limit={"micros": 1_000_000, "window": "weekly"})
    sim.upstream.submissions.extend([Outcome.BUSY] * 50)
    await sim.boot()
    name = await sim.admit(route=ROUTE, keyName="key-a")
    await sim.pass_time(1)
    sim.put_key(limit={"micros": 10_000, "window": "weekly"})
    status = await sim.finish(name)
    assert status["failure"]["code"] == "credit_limit_exceeded"
    assert sim.age_at_end(name) > sim.upstream.submit_seconds
    assert sim.upstream.jobs == []


@pytest.mark.parametrize("way", ["cancel", "delete"])
@in_virtual_time
async def test_job_received_after_another_owner_ended_the_task_is_stopped(way: str) -> None:
    sim = Simulation(FakeUpstream(latency=2.0))
    await boot_owners(sim, break_off(), FakeUpstream())
    name = await sim.admit(route=ROUTE)
    await sim.pass_time(0.5)
    await (sim.cancel(name) if way == "cancel" else sim.kube.delete(TASKS, name))
    assert (await sim.finish(name))["failure"]["code"] == "cancelled"
    assert sim.age_at_end(name) < 2
    await sim.pass_time(5)
    assert [job.cancelled for job in sim.upstream.jobs] == [True]
    told = [text for _, reason, text in sim.kube.events if reason == "JobAbandoned"]
    assert any("job_0 of simulated was stopped" in text for text in told)
    sim.check_history()


@in_virtual_time
async def test_job_is_not_recorded_under_another_provider() -> None:
    sim, other = Simulation(FakeUpstream(latency=2.0)), FakeUpstream()
    other.jobs.append(Job("job_0", "another", {}, 0.0))
    await boot_owners(sim, break_off(), other)
    name = await sim.admit(route=ROUTE)
    await sim.pass_time(0.5)
    moved = {"providerName": "other", "upstreamModel": "z9", "intentTime": "2026-11-21T10:00:01Z"}
    for obj in sim.kube.list_objects(TASKS):
        status = {"phase": "Submitting", "reservedMicros": 300_000, "upstream": moved}
        await sim.kube.replace_status(TASKS, obj, status)
    status = await sim.finish(name)
    assert status["upstream"]["providerName"] == "other"
    assert status["upstream"]["jobId"] == "job_1"
    assert [job.cancelled for job in sim.upstream.jobs] == [True]


@in_virtual_time
async def test_unrecorded_job_at_the_deadline_differs_from_one_never_taken() -> None:
    sim = await Simulation.start(FakeUpstream(latency=2.0))
    name = await sim.admit(route=ROUTE, deadline=10)
    await sim.pass_time(0.5)
    sim.kube.away = True
    await sim.wait(lambda: sim.upstream.jobs)
    await sim.pass_time(12)
    sim.kube.away = False
    failure = (await sim.finish(name))["failure"]
    assert failure["code"] == "deadline_exceeded"
    assert sim.upstream.jobs[0].cancelled
    await sim.pass_time(60)
    assert sim.kube.events == [], "its job was stopped here, and is no other owner's"


@in_virtual_time
async def test_late_event_of_an_ended_task_leaves_nothing_known_of_it() -> None:
    sim = Simulation()
    operator = await sim.boot()
    name = await sim.admit(route=ROUTE)
    await sim.finish(name)
    operator.controller.observe("ADDED", sim.history[name][0])
    submission = operator.controller._submission
    assert name not in submission._attempts
