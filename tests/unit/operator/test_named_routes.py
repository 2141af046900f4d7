"""Tasks whose request names a provider with idempotency keys: no intent is written before the job.

The route on record with the task is the intent. Whoever takes the task up submits it there, with
the same key and the same body, so it is one job (I2), however often it is submitted.
"""

from collections.abc import Callable
from typing import Any

import pytest

from gateway_core.api.provider import ProviderSpec
from gateway_core.providers.upstream import SubmissionGuarantee
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.harness import QUOTE, ROUTE, TASKS, Stage

KEY, LOOKUP, NONE = (
    SubmissionGuarantee.IDEMPOTENCY_KEY,
    SubmissionGuarantee.LOOKUP,
    SubmissionGuarantee.NONE,
)


def play(test: Callable[..., Any]) -> None:
    """Runs a test that has parameters in virtual time."""
    in_virtual_time(test)()


def count_writes(stage: Stage) -> int:
    """Status writes to tasks."""
    return stage.kube.calls.count(("replace_status", TASKS))


def route_elsewhere(stage: Stage) -> FakeUpstream:
    """Has the model lead to another provider from now on; that provider."""
    other, first = FakeUpstream(), stage.upstream

    def build(spec: ProviderSpec, _: str | None) -> FakeUpstream:
        return other if spec.type == "other" else first

    stage.build_upstream = build  # type: ignore[method-assign]
    stage.put_provider("other", type="other")
    stage.put_model(routes=[{"name": "main", "providerName": "other", "upstreamModel": "z9"}])
    return other


@in_virtual_time
async def test_two_status_writes_and_one_finalizer_removal() -> None:
    stage = Stage()
    await stage.boot()
    name = await stage.admit(route=ROUTE)
    status = await stage.finish(name)
    assert status["phase"] == "Completed"
    assert status["upstream"]["providerName"] == "simulated"
    assert status["upstream"]["upstreamModel"] == "q4"
    assert status["reservedMicros"] == QUOTE
    assert status["startTime"] <= status["completionTime"]
    assert count_writes(stage) == 2
    assert stage.kube.calls.count(("patch", TASKS)) == 1
    phases = [(obj.get("status") or {}).get("phase") for obj in stage.history[name]]
    assert list(dict.fromkeys(phases)) == [None, "Running", "Completed"]
    assert stage.count_jobs(name) == 1
    assert await stage.balance() == (QUOTE, 0)
    stage.check_history()


@in_virtual_time
async def test_successor_submits_same_job_though_model_leads_elsewhere_now() -> None:
    stage = Stage(FakeUpstream(latency=1.0))
    await stage.boot()
    name = await stage.admit(route=ROUTE)
    await stage.wait(lambda: stage.upstream.jobs)
    await stage.kill()
    assert stage.status(name) == {}
    other = route_elsewhere(stage)
    await stage.boot_without_books()
    assert (await stage.finish(name))["phase"] == "Completed"
    assert other.submitted == []
    first, second = stage.upstream.submitted
    assert first == second
    assert stage.count_jobs(name) == 1


@in_virtual_time
async def test_successor_waits_for_named_provider_that_is_unusable() -> None:
    stage = Stage(FakeUpstream(latency=1.0))
    await stage.boot()
    name = await stage.admit(route=ROUTE)
    await stage.wait(lambda: stage.upstream.jobs)
    await stage.kill()
    other = route_elsewhere(stage)
    stage.upstream.problem = "its library is missing"
    await stage.boot_without_books()
    await stage.pass_time(30)
    assert other.submitted == []
    stage.upstream.problem = None
    assert (await stage.finish(name))["phase"] == "Completed"
    assert len(stage.upstream.jobs) == 1


@in_virtual_time
async def test_unusable_named_provider_is_waited_for_and_shown() -> None:
    """Another owner may be submitting there: the model's next route would be a second job."""
    stage = Stage()
    other = route_elsewhere(stage)
    stage.upstream.problem = "its library is missing"
    await stage.boot()
    name = await stage.admit(route=ROUTE)
    await stage.pass_time(30)
    assert stage.status(name)["phase"] == "Submitting"
    assert count_writes(stage) == 1
    stage.upstream.problem = None
    status = await stage.finish(name)
    assert status["phase"] == "Completed"
    assert status["upstream"]["providerName"] == "simulated"
    assert other.submitted == []
    assert count_writes(stage) == 3


@in_virtual_time
async def test_intent_is_written_once_provider_keeps_task_waiting() -> None:
    stage = Stage()
    stage.upstream.submissions.append(Outcome.BUSY)
    await stage.boot()
    name = await stage.admit(route=ROUTE)
    await stage.wait(lambda: stage.status(name).get("phase") == "Submitting", seconds=0.5)
    assert (await stage.finish(name))["phase"] == "Completed"
    assert count_writes(stage) == 3


@in_virtual_time
async def test_admins_change_during_submission_makes_no_second_job() -> None:
    stage = Stage(FakeUpstream(latency=1.0))
    await stage.boot()
    name = await stage.admit(route=ROUTE)
    await stage.wait(lambda: stage.upstream.jobs)
    other = route_elsewhere(stage)
    stage.upstream.problem = "its library is missing"
    await stage.change(name, {"metadata": {"annotations": {"note": "x"}}})
    await stage.pass_time(20)
    assert other.submitted == []
    stage.upstream.problem = None
    status = await stage.finish(name)
    assert status["upstream"]["jobId"] == "job_0"
    assert len(stage.upstream.jobs) == 1


@in_virtual_time
async def test_task_from_kubectl_is_not_believed_its_route() -> None:
    stage = Stage()
    await stage.boot()
    name = await stage.apply(route={"providerName": "elsewhere", "upstreamModel": "x"})
    status = await stage.finish(name)
    assert status["upstream"]["providerName"] == "simulated"
    assert count_writes(stage) == 3


@pytest.mark.parametrize(
    ("guarantee", "phase"), [(KEY, "Completed"), (LOOKUP, "Completed"), (NONE, "Failed")]
)
def test_provider_that_lost_its_keys_is_not_submitted_to_twice(
    guarantee: SubmissionGuarantee, phase: str
) -> None:
    """What the provider declares at the takeover counts, and a job may be there already."""

    async def run() -> None:
        stage = Stage(FakeUpstream(latency=1.0))
        await stage.boot()
        name = await stage.admit(route=ROUTE)
        await stage.wait(lambda: stage.upstream.jobs)
        await stage.kill()
        stage.upstream.guarantee = guarantee
        stage.upstream.can_find = guarantee is LOOKUP
        await stage.boot_without_books()
        assert (await stage.finish(name))["phase"] == phase
        assert stage.count_jobs(name) == 1

    play(run)


@pytest.mark.parametrize("can_find", [True, False])
def test_cancelled_after_takeover_stops_job_that_no_record_names(can_find: bool) -> None:
    async def run() -> None:
        stage = Stage(FakeUpstream(latency=1.0, can_find=can_find))
        await stage.boot()
        name = await stage.admit(route=ROUTE)
        await stage.wait(lambda: stage.upstream.jobs)
        await stage.kill()
        await stage.cancel(name)
        await stage.boot_without_books()
        assert (await stage.finish(name))["failure"]["code"] == "cancelled"
        assert stage.upstream.jobs[0].cancelled is can_find
        events = [reason for _, reason, _ in stage.kube.events]
        assert events == ([] if can_find else ["JobAbandoned"])

    play(run)


@in_virtual_time
async def test_cancelled_before_own_submission_reports_job_of_another_owner() -> None:
    stage = Stage()
    stage.upstream.problem = "its library is missing"
    await stage.boot()
    name = await stage.admit(route=ROUTE)
    await stage.pass_time(5)
    await stage.cancel(name)
    assert (await stage.finish(name))["failure"]["code"] == "cancelled"
    assert [reason for _, reason, _ in stage.kube.events] == ["JobAbandoned"]
