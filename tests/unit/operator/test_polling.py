"""A job is asked after without a write until it has ended, whatever the provider answers."""

import itertools

import pytest

from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.providers.upstream import (
    JobReport,
    JobState,
    OutputRejected,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamUnclear,
)
from gateway_operator.tasks import polling
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import Fault
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.harness import QUOTE, Stage

GONE = UpstreamGone("The provider does not know the job.")
UNCLEAR = UpstreamUnclear("The provider answered with HTTP status 500.")


class TestPace:
    @in_virtual_time
    async def test_it_slows_down_with_age_between_the_declared_bounds(self) -> None:
        stage = Stage(FakeUpstream(seconds=550, poll_interval=(1.0, 15.0)))
        await stage.boot()
        await stage.finish(await stage.admit(), seconds=600)
        times = stage.upstream.times("poll")
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert min(pauses) >= 0.9
        assert max(pauses) <= 15 * 1.1 + 0.1
        assert sum(pauses[:5]) < sum(pauses[-5:]) / 3

    @in_virtual_time
    async def test_a_wish_to_be_left_alone_is_honoured(self) -> None:
        stage = Stage()
        stage.upstream.polls.append(JobReport(JobState.RUNNING, retry_after=40.0))
        await stage.boot()
        await stage.finish(await stage.admit())
        first, second = stage.upstream.times("poll")[:2]
        assert second - first >= 40

    @in_virtual_time
    async def test_also_when_it_comes_with_a_refusal(self) -> None:
        stage = Stage()
        stage.upstream.polls.append(UpstreamBusy("busy", retry_after=40.0))
        await stage.boot()
        await stage.finish(await stage.admit())
        first, second = stage.upstream.times("poll")[:2]
        assert second - first >= 40

    @in_virtual_time
    async def test_a_change_of_the_object_brings_no_poll_forward(self) -> None:
        stage = Stage()
        stage.upstream.polls.append(JobReport(JobState.RUNNING, retry_after=40.0))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.upstream.count("poll") == 1)
        for number in range(10):
            await stage.change(name, {"metadata": {"annotations": {"note": str(number)}}})
            await stage.pass_time(1)
        assert stage.upstream.count("poll") == 1


class TestTrouble:
    @pytest.mark.parametrize(
        "error",
        [
            UNCLEAR,
            UpstreamBusy("busy"),
            UpstreamDenied("denied"),
        ],
        ids=["unclear", "busy", "denied"],
    )
    def test_an_answer_that_tells_nothing_ends_nothing(self, error: UpstreamError) -> None:
        @in_virtual_time
        async def run() -> None:
            stage = Stage()
            stage.upstream.polls.extend([error] * 8)
            await stage.boot()
            name = await stage.admit()
            assert (await stage.finish(name, seconds=300))["phase"] == "Completed"
            assert await stage.balance() == (QUOTE, 0)

        run()

    @in_virtual_time
    async def test_pauses_grow_while_it_lasts(self) -> None:
        stage = Stage()
        stage.upstream.polls.extend([UNCLEAR] * 1000)
        await stage.boot()
        await stage.admit(deadline=3600)
        await stage.pass_time(600)
        assert 15 <= stage.upstream.count("poll") <= 45

    @in_virtual_time
    async def test_a_provider_that_answers_nothing_ends_the_task_at_its_deadline(self) -> None:
        stage = Stage()
        stage.upstream.polls.extend([UNCLEAR] * 1000)
        await stage.boot()
        name = await stage.admit(deadline=100)
        status = await stage.finish(name, seconds=120)
        assert status["failure"] == {
            "code": "deadline_exceeded",
            "message": "The provider did not finish the job within 100 seconds.",
        }
        assert stage.age_at_end(name) == pytest.approx(100, abs=3)
        assert await stage.balance() == (0, 0)
        assert stage.upstream.jobs[0].cancelled, "the job is stopped, for it costs"

    @in_virtual_time
    async def test_a_job_that_is_not_known_for_a_moment_is_not_lost(self) -> None:
        stage = Stage()
        stage.upstream.polls.extend([GONE] * 5)
        await stage.boot()
        assert (await stage.finish(await stage.admit()))["phase"] == "Completed"

    @in_virtual_time
    async def test_a_job_that_stays_unknown_is_lost(self) -> None:
        stage = Stage()
        stage.upstream.polls.extend([GONE] * 1000)
        await stage.boot()
        name = await stage.admit()
        status = await stage.finish(name, seconds=200)
        assert status["failure"] == {
            "code": "job_lost",
            "message": "The provider has lost the job.",
        }
        times = stage.upstream.times("poll")
        assert len(times) >= polling.LOST_ANSWERS
        assert times[-1] - times[0] >= polling.LOST_SECONDS
        assert await stage.balance() == (0, 0)

    @in_virtual_time
    async def test_an_answer_in_between_begins_the_count_anew(self) -> None:
        stage = Stage()
        stage.upstream.polls.extend(([GONE] * 4 + [JobReport(JobState.RUNNING)]) * 6)
        await stage.boot()
        name = await stage.admit()
        assert (await stage.finish(name, seconds=590))["phase"] == "Completed"

    @in_virtual_time
    async def test_a_provider_taken_away_is_waited_for(self) -> None:
        stage = Stage(FakeUpstream(seconds=20))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.status(name).get("phase") == "Running")
        stage.kube.remove("gatewayproviders", "simulated")
        await stage.pass_time(60)
        assert not stage.is_ended(name)
        stage.put_provider()
        assert (await stage.finish(name))["phase"] == "Completed"


class TestFetching:
    @pytest.mark.parametrize(
        "error", [UpstreamUnclear("cut"), UpstreamBusy("busy"), UpstreamGone("gone")]
    )
    def test_a_failure_is_tried_again(self, error: UpstreamError) -> None:
        @in_virtual_time
        async def run() -> None:
            stage = Stage()
            stage.upstream.fetches.extend([error] * 3)
            await stage.boot()
            assert (await stage.finish(await stage.admit(), seconds=120))["phase"] == "Completed"

        run()

    @in_virtual_time
    async def test_but_not_for_ever(self) -> None:
        stage = Stage()
        stage.upstream.fetches.extend([UpstreamUnclear("cut")] * 100)
        await stage.boot()
        status = await stage.finish(await stage.admit(), seconds=300)
        assert status["failure"] == {
            "code": "output_unavailable",
            "message": "The output could not be fetched from the provider.",
        }
        assert stage.upstream.count("fetch") == polling.MOST_COPY_ATTEMPTS
        assert await stage.balance() == (0, 0)

    @in_virtual_time
    async def test_what_is_not_allowed_is_not_tried_again(self) -> None:
        stage = Stage()
        stage.upstream.fetches.append(OutputRejected("The output's address is not allowed."))
        await stage.boot()
        status = await stage.finish(await stage.admit())
        assert status["failure"]["code"] == "output_unavailable"
        assert stage.upstream.count("fetch") == 1

    @in_virtual_time
    async def test_copying_again_after_a_death_replaces_what_was_there(self) -> None:
        stage = Stage()
        stage.kube.order_faults("replace_status", None, None, Fault(KubernetesUnavailable("away")))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.upstream.count("fetch") == 1)
        await stage.pass_time(0.1)
        await stage.restart()
        status = await stage.finish(name)
        assert stage.upstream.count("fetch") == 2
        media = [key for key in stage.store.contents if key.startswith("media/")]
        assert media == [video["key"] for video in status["result"]["videos"]]
