"""Tasks whose request names a provider with idempotency keys: no intent is written before the job.

The route on record with the task is the intent. Whoever takes the task up submits it there, with
the same key and the same body, so it is one job (I2), however often it is submitted.
"""

import pytest

from gateway_core.api.provider import ProviderSpec
from gateway_core.providers.upstream import SubmissionGuarantee
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.harness import QUOTE, ROUTE, TASKS, Simulation

KEY, LOOKUP, NONE = SubmissionGuarantee


def count_writes(sim: Simulation) -> int:
    return sim.kube.calls.count(("replace_status", TASKS))


def route_elsewhere(sim: Simulation) -> FakeUpstream:
    """Has the model lead to another provider from now on; that provider."""
    other, first = FakeUpstream(), sim.upstream

    def build(spec: ProviderSpec, _: str | None) -> FakeUpstream:
        return other if spec.type == "other" else first

    sim.build_upstream = build  # type: ignore[method-assign]
    sim.put_provider("other", type="other")
    sim.put_model(routes=[{"name": "main", "providerName": "other", "upstreamModel": "z9"}])
    return other


@in_virtual_time
async def test_two_status_writes_and_one_finalizer_removal() -> None:
    sim = await Simulation.start()
    name = await sim.admit(route=ROUTE)
    status = await sim.finish(name)
    assert status["phase"] == "Completed"
    assert status["upstream"]["providerName"] == "simulated"
    assert status["upstream"]["upstreamModel"] == "q4"
    assert status["reservedMicros"] == QUOTE
    assert status["startTime"] <= status["completionTime"]
    assert count_writes(sim) == 2
    assert sim.kube.calls.count(("patch", TASKS)) == 1
    phases = [(obj.get("status") or {}).get("phase") for obj in sim.history[name]]
    assert list(dict.fromkeys(phases)) == [None, "Running", "Completed"]
    assert sim.count_jobs(name) == 1
    assert await sim.balance() == (QUOTE, 0)
    sim.check_history()


@in_virtual_time
async def test_successor_submits_same_job_though_model_leads_elsewhere_now() -> None:
    sim = await Simulation.start(FakeUpstream(latency=1.0))
    name = await sim.admit(route=ROUTE)
    await sim.wait(lambda: sim.upstream.jobs)
    await sim.kill()
    assert sim.status(name) == {}
    other = route_elsewhere(sim)
    await sim.boot_without_books()
    assert (await sim.finish(name))["phase"] == "Completed"
    assert other.submitted == []
    first, second = sim.upstream.submitted
    assert first == second
    assert sim.count_jobs(name) == 1


@in_virtual_time
async def test_successor_waits_for_named_provider_that_is_unusable() -> None:
    sim = await Simulation.start(FakeUpstream(latency=1.0))
    name = await sim.admit(route=ROUTE)
    await sim.wait(lambda: sim.upstream.jobs)
    await sim.kill()
    other = route_elsewhere(sim)
    sim.set_problem("its library is missing")
    await sim.boot_without_books()
    await sim.pass_time(30)
    assert other.submitted == []
    sim.set_problem(None)
    assert (await sim.finish(name))["phase"] == "Completed"
    assert len(sim.upstream.jobs) == 1


@in_virtual_time
async def test_unusable_named_provider_is_waited_for_and_shown() -> None:
    """Another owner may be submitting there: the model's next route would be a second job."""
    sim = Simulation()
    other = route_elsewhere(sim)
    sim.set_problem("its library is missing")
    await sim.boot()
    name = await sim.admit(route=ROUTE)
    await sim.pass_time(30)
    assert sim.status(name)["phase"] == "Submitting"
    assert count_writes(sim) == 1
    sim.set_problem(None)
    status = await sim.finish(name)
    assert status["phase"] == "Completed"
    assert status["upstream"]["providerName"] == "simulated"
    assert other.submitted == []
    assert count_writes(sim) == 3


@in_virtual_time
async def test_intent_is_written_once_provider_keeps_task_waiting() -> None:
    sim = await Simulation.start()
    sim.upstream.submissions.append(Outcome.BUSY)
    name = await sim.admit(route=ROUTE)
    await sim.wait(lambda: sim.status(name).get("phase") == "Submitting", seconds=0.5)
    assert (await sim.finish(name))["phase"] == "Completed"
    assert count_writes(sim) == 3


@in_virtual_time
async def test_admins_change_during_submission_makes_no_second_job() -> None:
    sim = await Simulation.start(FakeUpstream(latency=1.0))
    name = await sim.admit(route=ROUTE)
    await sim.wait(lambda: sim.upstream.jobs)
    other = route_elsewhere(sim)
    sim.set_problem("its library is missing")
    await sim.change(name, {"metadata": {"annotations": {"note": "x"}}})
    await sim.pass_time(20)
    assert other.submitted == []
    sim.set_problem(None)
    status = await sim.finish(name)
    assert status["upstream"]["jobId"] == "job_0"
    assert len(sim.upstream.jobs) == 1


@in_virtual_time
async def test_task_from_kubectl_is_not_believed_its_route() -> None:
    sim = await Simulation.start()
    name = await sim.apply(route={"providerName": "elsewhere", "upstreamModel": "x"})
    status = await sim.finish(name)
    assert status["upstream"]["providerName"] == "simulated"
    assert count_writes(sim) == 3


@pytest.mark.parametrize(
    ("guarantee", "phase"), [(KEY, "Completed"), (LOOKUP, "Completed"), (NONE, "Failed")]
)
@in_virtual_time
async def test_provider_that_lost_its_keys_is_not_submitted_to_twice(
    guarantee: SubmissionGuarantee, phase: str
) -> None:
    """What the provider declares at the takeover counts, and a job may be there already."""
    sim = await Simulation.start(FakeUpstream(latency=1.0))
    name = await sim.admit(route=ROUTE)
    await sim.wait(lambda: sim.upstream.jobs)
    await sim.kill()
    sim.upstream.guarantee = guarantee
    sim.upstream.can_find = guarantee is LOOKUP
    await sim.boot_without_books()
    assert (await sim.finish(name))["phase"] == phase
    assert sim.count_jobs(name) == 1


@pytest.mark.parametrize("can_find", [True, False])
@in_virtual_time
async def test_cancelled_after_takeover_stops_job_that_no_record_names(can_find: bool) -> None:
    sim = await Simulation.start(FakeUpstream(latency=1.0, can_find=can_find))
    name = await sim.admit(route=ROUTE)
    await sim.wait(lambda: sim.upstream.jobs)
    await sim.kill()
    await sim.cancel(name)
    await sim.boot_without_books()
    assert (await sim.finish(name))["failure"]["code"] == "cancelled"
    assert sim.upstream.jobs[0].cancelled is can_find
    events = [reason for _, reason, _ in sim.kube.events]
    assert events == ([] if can_find else ["JobAbandoned"])


@in_virtual_time
async def test_cancelled_before_own_submission_reports_job_of_another_owner() -> None:
    sim = await Simulation.start()
    sim.set_problem("its library is missing")
    name = await sim.admit(route=ROUTE)
    await sim.pass_time(5)
    await sim.cancel(name)
    assert (await sim.finish(name))["failure"]["code"] == "cancelled"
    assert [reason for _, reason, _ in sim.kube.events] == ["JobAbandoned"]
