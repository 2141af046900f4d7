"""Tasks that are stopped, run out of time, or are closed once they have ended."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway_core.api.ids import TASK_FINALIZER
from gateway_core.providers.upstream import SubmissionGuarantee, UpstreamUnclear
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.harness import QUOTE, TASKS, Stage

CANCELLED = {"code": "cancelled", "message": "The task was cancelled."}


async def delete(stage: Stage, name: str) -> None:
    await stage.kube.delete(TASKS, name)


async def cancel(stage: Stage, name: str) -> None:
    await stage.cancel(name)


BOTH_WAYS = pytest.mark.parametrize("stop", [delete, cancel], ids=["deleted", "cancelled"])


def play(test: Callable[..., Any]) -> None:
    """Runs a test that has parameters in virtual time."""
    in_virtual_time(test)()


@BOTH_WAYS
class TestStopping:
    def test_a_running_job_is_stopped_and_costs_nothing(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(seconds=100))
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.status(name).get("phase") == "Running")
            await stop(stage, name)
            status = await stage.finish(name, seconds=5)
            assert status["failure"] == CANCELLED
            assert stage.upstream.jobs[0].cancelled
            assert await stage.balance() == (0, 0)
            await stage.check_archive()
            stage.check_history()

        play(run)

    def test_before_it_was_submitted(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage()
            stage.kube.remove("gatewayproviders", "simulated")
            await stage.boot()
            name = await stage.admit()
            await stage.pass_time(1)
            await stop(stage, name)
            assert (await stage.finish(name, seconds=5))["failure"] == CANCELLED
            assert stage.upstream.calls == []
            assert await stage.balance() == (0, 0)

        play(run)

    def test_while_the_provider_is_busy(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(retry_after=100.0))
            stage.upstream.submissions.extend([Outcome.BUSY] * 100)
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.upstream.count("submit"))
            await stop(stage, name)
            assert (await stage.finish(name, seconds=5))["failure"] == CANCELLED
            assert stage.upstream.jobs == []

        play(run)

    def test_a_provider_that_is_away_is_given_thirty_seconds(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(seconds=100))
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.status(name).get("phase") == "Running")
            stage.upstream.away = True
            await stop(stage, name)
            await stage.pass_time(20)
            assert not stage.is_ended(name)
            assert (await stage.finish(name, seconds=15))["failure"] == CANCELLED
            [event] = stage.kube.events
            assert event[:2] == (name, "JobAbandoned")
            assert "may still be running" in event[2]

        play(run)

    def test_a_provider_that_hangs_is_given_no_more(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(seconds=100))
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.status(name).get("phase") == "Running")
            stage.upstream.latency = 1000.0
            await stop(stage, name)
            assert (await stage.finish(name, seconds=40))["failure"] == CANCELLED

        play(run)

    def test_a_provider_that_recovers_in_time_stops_the_job(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(seconds=100))
            stage.upstream.cancels.extend([UpstreamUnclear("500")] * 3)
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.status(name).get("phase") == "Running")
            await stop(stage, name)
            await stage.finish(name, seconds=20)
            assert stage.upstream.jobs[0].cancelled
            assert stage.kube.events == []

        play(run)

    def test_a_provider_that_is_gone_is_no_obstacle(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(seconds=100))
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.status(name).get("phase") == "Running")
            stage.kube.remove("gatewayproviders", "simulated")
            await stop(stage, name)
            assert (await stage.finish(name, seconds=5))["failure"] == CANCELLED
            [event] = stage.kube.events
            assert event[1] == "JobAbandoned"

        play(run)

    def test_a_provider_that_cannot_stop_jobs_is_not_asked(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(seconds=100, can_cancel=False))
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.status(name).get("phase") == "Running")
            await stop(stage, name)
            assert (await stage.finish(name, seconds=5))["failure"] == CANCELLED
            assert stage.upstream.count("cancel") == 0

        play(run)

    def test_a_submission_that_was_cut_short_is_looked_up_and_stopped(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(SubmissionGuarantee.LOOKUP, seconds=100))
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.upstream.jobs)
            await stage.kill()
            await stop(stage, name)
            await stage.restart()
            assert (await stage.finish(name))["failure"] == CANCELLED
            assert stage.upstream.jobs[0].cancelled

        play(run)

    def test_one_that_cannot_be_looked_up_is_reported(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(seconds=100))
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.upstream.jobs)
            await stage.kill()
            await stop(stage, name)
            await stage.restart()
            assert (await stage.finish(name))["failure"] == CANCELLED
            assert [event[1] for event in stage.kube.events] == ["JobAbandoned"]

        play(run)

    def test_a_death_while_stopping_is_gone_on_from(self, stop: Any) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(seconds=100))
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.status(name).get("phase") == "Running")
            stage.upstream.away = True
            await stop(stage, name)
            await stage.pass_time(10)
            await stage.restart()
            assert (await stage.finish(name, seconds=40))["failure"] == CANCELLED

        play(run)


class TestDeletion:
    @in_virtual_time
    async def test_the_object_goes_and_the_result_stays(self) -> None:
        stage = Stage(FakeUpstream(seconds=100))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.status(name).get("phase") == "Running")
        await delete(stage, name)
        await stage.wait(lambda: not stage.is_there(name), seconds=5)
        archived = json.loads(stage.store.contents[f"tasks/demo/{name}.json"])
        assert archived["status"]["failure"] == CANCELLED

    @in_virtual_time
    async def test_a_finished_task_is_an_ordinary_object(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        await stage.finish(name)
        await stage.kill()
        await delete(stage, name)
        assert not stage.is_there(name)

    @in_virtual_time
    async def test_one_that_ends_while_it_is_deleted_keeps_its_end(self) -> None:
        stage = Stage(lag=30)
        await stage.boot()
        name = await stage.admit()
        stage.show(name)
        await stage.wait(lambda: stage.status(name).get("phase") == "Running")
        await delete(stage, name)
        status = await stage.finish(name)
        stage.check_history()
        assert status["phase"] in ("Completed", "Failed")
        charged, held = await stage.balance()
        assert (charged, held) == (status["chargedMicros"], 0)

    @in_virtual_time
    async def test_finalizers_of_others_are_left_alone(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        others = {"finalizers": [TASK_FINALIZER, "example.com/mine"]}
        await stage.change(name, {"metadata": others})
        await stage.finish(name)
        assert stage.history[name][-1]["metadata"]["finalizers"] == ["example.com/mine"]


class TestClosing:
    @in_virtual_time
    async def test_a_store_that_is_away_delays_the_closing_and_nothing_else(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        stage.upstream.fetches.clear()
        await stage.wait(lambda: stage.store.contents)
        stage.store.away = True
        await stage.wait(lambda: stage.is_ended(name))
        await stage.pass_time(30)
        assert not stage.is_closed(name)
        stage.store.away = False
        await stage.finish(name)
        await stage.check_archive()
        stage.check_history()

    @in_virtual_time
    async def test_what_a_watch_shows_of_an_ended_task_undoes_nothing(self) -> None:
        """It comes as it was before it ended, under the version that ended it (I3)."""
        stage = Stage(lag=1.0)
        await stage.boot()
        name = await stage.admit()
        stage.show(name)
        await stage.wait(lambda: stage.store.contents)
        stage.store.away = True
        await stage.wait(lambda: stage.is_ended(name))
        await stage.pass_time(120)
        stage.store.away = False
        await stage.finish(name)
        stage.check_history()
        assert stage.upstream.count("fetch") == 1

    @in_virtual_time
    async def test_an_end_that_another_wrote_is_closed_and_not_undone(self) -> None:
        stage = Stage(FakeUpstream(seconds=100))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.status(name).get("phase") == "Running")
        end = {
            "phase": "Failed",
            "work": "Settled",
            "chargedMicros": 0,
            "failure": {"code": "cancelled", "message": "Another replica ended it."},
            "completionTime": "2026-11-21T10:00:09Z",
        }
        await stage.kube.patch_status(TASKS, await stage.kube.get(TASKS, name), end)
        status = await stage.finish(name, seconds=10)
        assert status["failure"]["message"] == "Another replica ended it."
        await stage.pass_time(200)
        stage.check_history()
        assert await stage.balance() == (0, 0)
        assert stage.operator is not None
        assert len(stage.operator.cache) == 0

    @in_virtual_time
    async def test_a_task_that_ended_before_a_death_is_closed_after_it(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.is_ended(name))
        await stage.restart()
        await stage.finish(name, seconds=5)
        assert await stage.balance() == (QUOTE, 0)
        await stage.check_archive()

    @in_virtual_time
    async def test_nothing_is_kept_of_what_is_closed(self) -> None:
        stage = Stage()
        operator = await stage.boot()
        for _ in range(20):
            await stage.finish(await stage.admit(reserved=1))
        await stage.pass_time(30)
        assert len(operator.cache) == 0
        assert len(operator.queue) == 0
        controller: Any = operator.controller
        assert controller._submission._attempts == {}
        assert controller._polling._polls == {}
        assert controller._ending._stopping == {}


class TestDeadline:
    @in_virtual_time
    async def test_a_task_nobody_took_says_so(self) -> None:
        stage = Stage()
        stage.kube.remove("gatewayproviders", "simulated")
        await stage.boot()
        name = await stage.admit(deadline=30)
        status = await stage.finish(name, seconds=40)
        assert status["failure"] == {
            "code": "provider_unavailable",
            "message": "The provider did not take the job within 30 seconds.",
        }
        assert stage.age_at_end(name) == pytest.approx(30, abs=2)
        assert await stage.balance() == (0, 0)

    @in_virtual_time
    async def test_a_deadline_that_passed_while_nobody_was_there_holds(self) -> None:
        stage = Stage()
        name = await stage.admit(deadline=30)
        await stage.pass_time(100)
        await stage.boot()
        status = await stage.finish(name)
        assert status["failure"]["code"] == "provider_unavailable"
        assert stage.upstream.jobs == []

    @in_virtual_time
    async def test_a_deadline_that_is_brought_forward_holds(self) -> None:
        stage = Stage(FakeUpstream(seconds=500))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.status(name).get("phase") == "Running")
        await stage.change(name, {"spec": {"deadlineSeconds": 20}})
        await stage.finish(name, seconds=30)
        assert stage.age_at_end(name) == pytest.approx(20, abs=3)

    @in_virtual_time
    async def test_a_provider_that_hangs_at_the_end_delays_it_little(self) -> None:
        stage = Stage(FakeUpstream(seconds=500))
        await stage.boot()
        name = await stage.admit(deadline=30)
        await stage.wait(lambda: stage.status(name).get("phase") == "Running")
        stage.upstream.polls.clear()
        await stage.wait(lambda: stage.upstream.count("poll") > 2)
        stage.upstream.latency = 25.0
        await stage.finish(name, seconds=80)
        assert stage.status(name)["failure"]["code"] == "deadline_exceeded"
        assert stage.age_at_end(name) <= 30 + 25 + 12
