"""Two operators that both watch a shard, as while shards move: a task's paid job is one (I2).

The first one's call to the provider takes long, so that its job is on no record; the second sees
the task created too, and the provider or the limits differently.
"""

from collections.abc import Callable
from typing import Any

import pytest

from gateway_core.api.provider import ProviderSpec
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Job, Outcome
from tests.unit.operator.harness import ROUTE, TASKS, Operator, Stage


def play(test: Callable[..., Any]) -> None:
    """Runs a test that has parameters in virtual time."""
    in_virtual_time(test)()


async def boot_owners(
    stage: Stage, second: FakeUpstream, other: FakeUpstream, *, lag: float = 0.01
) -> Operator:
    """Starts both; the second reaches `simulated` through its own `second`; the first owner."""
    first = await stage.boot()
    await first.providers.find("simulated")

    def build(spec: ProviderSpec, _: str | None) -> FakeUpstream:
        return other if spec.type == "other" else second

    stage.build_upstream = build  # type: ignore[method-assign]
    stage.put_provider("other", type="other")
    names = (("simulated", "q4"), ("other", "z9"))
    stage.put_model(
        routes=[{"name": p, "providerName": p, "upstreamModel": model} for p, model in names]
    )
    stage.boot_twin(lag)
    return first


def break_off() -> FakeUpstream:
    """The provider as an owner sees it that cannot use it."""
    return FakeUpstream(problem="its library is missing")


@in_virtual_time
async def test_second_owner_does_not_submit_to_another_provider() -> None:
    stage, other = Stage(FakeUpstream(latency=2.0)), FakeUpstream()
    await boot_owners(stage, break_off(), other)
    name = await stage.admit(route=ROUTE)
    status = await stage.finish(name)
    assert status["phase"] == "Completed"
    assert status["upstream"]["providerName"] == "simulated"
    assert status["upstream"]["jobId"] == stage.upstream.jobs[0].id
    assert stage.count_jobs(name) == 1
    assert other.submitted == []
    stage.check_history()


@in_virtual_time
async def test_limit_does_not_fail_task_that_another_owner_submits() -> None:
    stage = Stage(FakeUpstream(latency=20.0, submit_seconds=25.0))
    stage.put_key(limit={"micros": 1_000_000, "window": "weekly"})
    await boot_owners(stage, break_off(), FakeUpstream(), lag=7.0)
    name = await stage.admit(route=ROUTE, keyName="key-a")
    await stage.pass_time(1)
    stage.put_key(limit={"micros": 10_000, "window": "weekly"})
    assert (await stage.finish(name))["phase"] == "Completed"
    assert stage.count_jobs(name) == 1
    stage.check_history()


@in_virtual_time
async def test_limit_fails_routed_task_once_no_other_call_can_be_under_way() -> None:
    stage = Stage()
    stage.put_key(limit={"micros": 1_000_000, "window": "weekly"})
    stage.upstream.submissions.extend([Outcome.BUSY] * 50)
    await stage.boot()
    name = await stage.admit(route=ROUTE, keyName="key-a")
    await stage.pass_time(1)
    stage.put_key(limit={"micros": 10_000, "window": "weekly"})
    status = await stage.finish(name)
    assert status["failure"]["code"] == "credit_limit_exceeded"
    assert stage.age_at_end(name) > stage.upstream.submit_seconds
    assert stage.upstream.jobs == []


@pytest.mark.parametrize("way", ["cancel", "delete"])
def test_job_received_after_another_owner_ended_the_task_is_stopped(way: str) -> None:
    async def run() -> None:
        stage = Stage(FakeUpstream(latency=2.0))
        await boot_owners(stage, break_off(), FakeUpstream())
        name = await stage.admit(route=ROUTE)
        await stage.pass_time(0.5)
        await (stage.cancel(name) if way == "cancel" else stage.kube.delete(TASKS, name))
        assert (await stage.finish(name))["failure"]["code"] == "cancelled"
        assert stage.age_at_end(name) < 2
        await stage.pass_time(5)
        assert [job.cancelled for job in stage.upstream.jobs] == [True]
        told = [text for _, reason, text in stage.kube.events if reason == "JobAbandoned"]
        assert any("job_0 of simulated was stopped" in text for text in told)
        stage.check_history()

    play(run)


@in_virtual_time
async def test_job_is_not_recorded_under_another_provider() -> None:
    stage, other = Stage(FakeUpstream(latency=2.0)), FakeUpstream()
    other.jobs.append(Job("job_0", "another", {}, 0.0))
    await boot_owners(stage, break_off(), other)
    name = await stage.admit(route=ROUTE)
    await stage.pass_time(0.5)
    moved = {"providerName": "other", "upstreamModel": "z9", "intentTime": "2026-11-21T10:00:01Z"}
    for obj in stage.kube.list_objects(TASKS):
        status = {"phase": "Submitting", "reservedMicros": 300_000, "upstream": moved}
        await stage.kube.replace_status(TASKS, obj, status)
    status = await stage.finish(name)
    assert status["upstream"]["providerName"] == "other"
    assert status["upstream"]["jobId"] == "job_1"
    assert [job.cancelled for job in stage.upstream.jobs] == [True]


@in_virtual_time
async def test_unrecorded_job_at_the_deadline_is_told_from_one_never_taken() -> None:
    stage = Stage(FakeUpstream(latency=2.0))
    await stage.boot()
    name = await stage.admit(route=ROUTE, deadline=10)
    await stage.pass_time(0.5)
    stage.kube.away = True
    await stage.wait(lambda: stage.upstream.jobs)
    await stage.pass_time(12)
    stage.kube.away = False
    failure = (await stage.finish(name))["failure"]
    assert failure["code"] == "deadline_exceeded"
    assert stage.upstream.jobs[0].cancelled


@in_virtual_time
async def test_late_event_of_an_ended_task_leaves_nothing_known_of_it() -> None:
    stage = Stage()
    operator = await stage.boot()
    name = await stage.admit(route=ROUTE)
    await stage.finish(name)
    operator.controller.observe("ADDED", stage.history[name][0])
    submission = operator.controller._submission
    assert name not in submission._attempts
