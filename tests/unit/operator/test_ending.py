"""Tasks that are stopped, run out of time, or are closed once they have ended."""

from typing import Any

import pytest

from gateway_core.api.ids import TASK_FINALIZER
from gateway_core.providers.upstream import SubmissionGuarantee, UpstreamUnclear
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.harness import TASKS, Simulation

CANCELLED = {"code": "cancelled", "message": "The task was cancelled."}


async def delete(sim: Simulation, name: str) -> None:
    await sim.kube.delete(TASKS, name)


async def cancel(sim: Simulation, name: str) -> None:
    await sim.cancel(name)


BOTH_WAYS = pytest.mark.parametrize("stop", [delete, cancel], ids=["deleted", "cancelled"])


@BOTH_WAYS
class TestStopping:
    @in_virtual_time
    async def test_running_job_is_stopped_and_costs_nothing(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100))
        name = await sim.run()
        await stop(sim, name)
        status = await sim.finish(name, seconds=5)
        assert status["failure"] == CANCELLED
        assert sim.upstream.jobs[0].cancelled
        assert await sim.balance() == (0, 0)
        await sim.check_archive()
        sim.check_history()

    @in_virtual_time
    async def test_task_cancelled_before_submission_makes_no_job(self, stop: Any) -> None:
        sim = Simulation()
        sim.kube.remove("gatewayproviders", "simulated")
        await sim.boot()
        name = await sim.admit()
        await sim.pass_time(1)
        await stop(sim, name)
        assert (await sim.finish(name, seconds=5))["failure"] == CANCELLED
        assert sim.upstream.calls == []
        assert await sim.balance() == (0, 0)

    @in_virtual_time
    async def test_task_cancelled_while_provider_is_busy_makes_no_job(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(retry_after=100.0))
        sim.upstream.submissions.extend([Outcome.BUSY] * 100)
        name = await sim.admit()
        await sim.wait(lambda: sim.upstream.count("submit"))
        await stop(sim, name)
        assert (await sim.finish(name, seconds=5))["failure"] == CANCELLED
        assert sim.upstream.jobs == []

    @in_virtual_time
    async def test_unavailable_provider_is_retried_for_thirty_seconds(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100))
        name = await sim.run()
        sim.upstream.away = True
        await stop(sim, name)
        await sim.pass_time(20)
        assert not sim.is_ended(name)
        assert (await sim.finish(name, seconds=15))["failure"] == CANCELLED
        [event] = sim.kube.events
        assert event[:2] == (name, "JobAbandoned")
        assert "may still be running" in event[2]

    @in_virtual_time
    async def test_hanging_provider_is_awaited_for_thirty_seconds(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100))
        name = await sim.run()
        sim.upstream.latency = 1000.0
        await stop(sim, name)
        assert (await sim.finish(name, seconds=40))["failure"] == CANCELLED

    @in_virtual_time
    async def test_provider_that_recovers_in_time_stops_the_job(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100))
        sim.upstream.cancels.extend([UpstreamUnclear("500")] * 3)
        name = await sim.run()
        await stop(sim, name)
        await sim.finish(name, seconds=20)
        assert sim.upstream.jobs[0].cancelled
        assert sim.kube.events == []

    @in_virtual_time
    async def test_job_of_a_deleted_provider_is_stopped_as_it_was_known(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100))
        name = await sim.run()
        sim.kube.remove("gatewayproviders", "simulated")
        await sim.pass_time(100)
        await stop(sim, name)
        assert (await sim.finish(name, seconds=5))["failure"] == CANCELLED
        assert sim.upstream.jobs[0].cancelled
        assert sim.kube.events == []

    @in_virtual_time
    async def test_provider_that_was_never_known_does_not_block_cancel(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100))
        name = await sim.run()
        await sim.kill()
        sim.kube.remove("gatewayproviders", "simulated")
        await sim.boot_without_books()
        await stop(sim, name)
        assert (await sim.finish(name, seconds=5))["failure"] == CANCELLED
        [event] = sim.kube.events
        assert event[1] == "JobAbandoned"

    @in_virtual_time
    async def test_provider_without_cancel_is_not_called(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100, can_cancel=False))
        name = await sim.run()
        await stop(sim, name)
        assert (await sim.finish(name, seconds=5))["failure"] == CANCELLED
        assert sim.upstream.count("cancel") == 0

    @in_virtual_time
    async def test_submission_that_was_cut_short_is_looked_up_and_stopped(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(SubmissionGuarantee.LOOKUP, seconds=100))
        name = await sim.admit()
        await sim.wait(lambda: sim.upstream.jobs)
        await sim.kill()
        await stop(sim, name)
        await sim.restart()
        assert (await sim.finish(name))["failure"] == CANCELLED
        assert sim.upstream.jobs[0].cancelled

    @in_virtual_time
    async def test_unknown_job_is_reported_by_event(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100))
        name = await sim.admit()
        await sim.wait(lambda: sim.upstream.jobs)
        await sim.kill()
        await stop(sim, name)
        await sim.restart()
        assert (await sim.finish(name))["failure"] == CANCELLED
        assert [event[1] for event in sim.kube.events] == ["JobAbandoned"]

    @in_virtual_time
    async def test_kill_while_stopping_is_continued(self, stop: Any) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100))
        name = await sim.run()
        sim.upstream.away = True
        await stop(sim, name)
        await sim.pass_time(10)
        await sim.restart()
        assert (await sim.finish(name, seconds=40))["failure"] == CANCELLED


class TestDeletion:
    @in_virtual_time
    async def test_task_that_ends_while_deleted_keeps_its_result(self) -> None:
        sim = await Simulation.start(lag=30)
        name = await sim.admit()
        sim.show(name)
        await sim.wait(lambda: sim.status(name).get("phase") == "Running")
        await delete(sim, name)
        status = await sim.finish(name)
        sim.check_history()
        assert status["phase"] in ("Completed", "Failed")
        charged, held = await sim.balance()
        assert (charged, held) == (status["chargedMicros"], 0)

    @in_virtual_time
    async def test_finalizers_of_others_stay(self) -> None:
        sim = await Simulation.start()
        name = await sim.admit()
        others = {"finalizers": [TASK_FINALIZER, "example.com/mine"]}
        await sim.change(name, {"metadata": others})
        await sim.finish(name)
        assert sim.history[name][-1]["metadata"]["finalizers"] == ["example.com/mine"]


class TestClosing:
    @in_virtual_time
    async def test_unavailable_store_delays_only_closing(self) -> None:
        sim = await Simulation.start()
        name = await sim.admit()
        sim.upstream.fetches.clear()
        await sim.wait(lambda: sim.store.contents)
        sim.store.away = True
        await sim.wait(lambda: sim.is_ended(name))
        await sim.pass_time(30)
        assert not sim.is_closed(name)
        sim.store.away = False
        await sim.finish(name)
        await sim.check_archive()
        sim.check_history()

    @in_virtual_time
    async def test_stale_event_of_ended_task_changes_nothing(self) -> None:
        """It comes as it was before it ended, under the version that ended it (I3)."""
        sim = await Simulation.start(lag=1.0)
        name = await sim.admit()
        sim.show(name)
        await sim.wait(lambda: sim.store.contents)
        sim.store.away = True
        await sim.wait(lambda: sim.is_ended(name))
        await sim.pass_time(120)
        sim.store.away = False
        await sim.finish(name)
        sim.check_history()
        assert sim.upstream.count("fetch") == 1

    @in_virtual_time
    async def test_end_written_by_another_owner_is_closed(self) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100))
        name = await sim.run()
        end = {
            "phase": "Failed",
            "work": "Settled",
            "chargedMicros": 0,
            "failure": {"code": "cancelled", "message": "Another replica ended it."},
            "completionTime": "2026-11-21T10:00:09Z",
        }
        await sim.kube.patch_status(TASKS, await sim.kube.get(TASKS, name), end)
        status = await sim.finish(name, seconds=10)
        assert status["failure"]["message"] == "Another replica ended it."
        await sim.pass_time(200)
        sim.check_history()
        assert await sim.balance() == (0, 0)
        assert len(sim.running.cache) == 0

    @in_virtual_time
    async def test_closed_task_leaves_nothing_in_memory(self) -> None:
        sim = Simulation()
        operator = await sim.boot()
        for _ in range(20):
            await sim.finish(await sim.admit(reserved=1))
        await sim.pass_time(30)
        assert len(operator.cache) == 0
        assert len(operator.queue) == 0
        controller: Any = operator.controller
        assert controller._submission._attempts == {}
        assert controller._polling._polls == {}
        assert controller._ending._stopping == {}


class TestDeadline:
    @in_virtual_time
    async def test_task_no_provider_took_fails_as_unavailable(self) -> None:
        sim = Simulation()
        sim.kube.remove("gatewayproviders", "simulated")
        await sim.boot()
        name = await sim.admit(deadline=30)
        status = await sim.finish(name, seconds=40)
        assert status["failure"] == {
            "code": "provider_unavailable",
            "message": "The provider did not take the job within 30 seconds.",
        }
        assert sim.age_at_end(name) == pytest.approx(30, abs=2)
        assert await sim.balance() == (0, 0)

    @in_virtual_time
    async def test_deadline_passed_without_operator_is_enforced(self) -> None:
        sim = Simulation()
        name = await sim.admit(deadline=30)
        await sim.pass_time(100)
        await sim.boot()
        status = await sim.finish(name)
        assert status["failure"]["code"] == "provider_unavailable"
        assert sim.upstream.jobs == []

    @in_virtual_time
    async def test_shortened_deadline_is_enforced(self) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=500))
        name = await sim.run()
        await sim.change(name, {"spec": {"deadlineSeconds": 20}})
        await sim.finish(name, seconds=30)
        assert sim.age_at_end(name) == pytest.approx(20, abs=3)

    @in_virtual_time
    async def test_hanging_provider_delays_deadline_by_seconds(self) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=500))
        name = await sim.run(deadline=30)
        sim.upstream.polls.clear()
        await sim.wait(lambda: sim.upstream.count("poll") > 2)
        sim.upstream.latency = 25.0
        await sim.finish(name, seconds=80)
        assert sim.status(name)["failure"]["code"] == "deadline_exceeded"
        assert sim.age_at_end(name) <= 30 + 25 + 12
