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
from tests.unit.operator.harness import QUOTE, Simulation

GONE = UpstreamGone("The provider does not know the job.")
UNCLEAR = UpstreamUnclear("The provider answered with HTTP status 500.")


class TestPace:
    @in_virtual_time
    async def test_interval_grows_with_age_between_declared_bounds(self) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=550, poll_interval=(1.0, 15.0)))
        await sim.finish(await sim.admit(), seconds=600)
        times = sim.upstream.times("poll")
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert min(pauses) >= 0.9
        assert max(pauses) <= 15 * 1.1 + 0.1
        assert sum(pauses[:5]) < sum(pauses[-5:]) / 3

    @pytest.mark.parametrize(
        "answer",
        [JobReport(JobState.RUNNING, retry_after=40.0), UpstreamBusy("busy", retry_after=40.0)],
        ids=["running", "busy"],
    )
    @in_virtual_time
    async def test_retry_after_is_respected(self, answer: JobReport | UpstreamBusy) -> None:
        sim = await Simulation.start()
        sim.upstream.polls.append(answer)
        await sim.finish(await sim.admit())
        first, second = sim.upstream.times("poll")[:2]
        assert second - first >= 40

    @in_virtual_time
    async def test_change_of_object_causes_no_poll(self) -> None:
        sim = await Simulation.start()
        sim.upstream.polls.append(JobReport(JobState.RUNNING, retry_after=40.0))
        name = await sim.admit()
        await sim.wait(lambda: sim.upstream.count("poll") == 1)
        for number in range(10):
            await sim.change(name, {"metadata": {"annotations": {"note": str(number)}}})
            await sim.pass_time(1)
        assert sim.upstream.count("poll") == 1


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
    @in_virtual_time
    async def test_failed_polls_do_not_end_the_task(self, error: UpstreamError) -> None:
        sim = await Simulation.start()
        sim.upstream.polls.extend([error] * 8)
        name = await sim.admit()
        assert (await sim.finish(name, seconds=300))["phase"] == "Completed"
        assert await sim.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_pauses_grow_during_outage(self) -> None:
        sim = await Simulation.start()
        sim.upstream.polls.extend([UNCLEAR] * 1000)
        await sim.admit(deadline=3600)
        await sim.pass_time(600)
        assert 15 <= sim.upstream.count("poll") <= 45

    @in_virtual_time
    async def test_silent_provider_ends_task_at_deadline(self) -> None:
        sim = await Simulation.start()
        sim.upstream.polls.extend([UNCLEAR] * 1000)
        name = await sim.admit(deadline=100)
        status = await sim.finish(name, seconds=120)
        assert status["failure"] == {
            "code": "deadline_exceeded",
            "message": "The provider did not finish the job within 100 seconds.",
        }
        assert sim.age_at_end(name) == pytest.approx(100, abs=3)
        assert await sim.balance() == (0, 0)
        assert sim.upstream.jobs[0].cancelled, "the job is stopped, for it costs"

    @in_virtual_time
    async def test_job_that_stays_unknown_is_lost(self) -> None:
        sim = await Simulation.start()
        sim.upstream.polls.extend([GONE] * 1000)
        name = await sim.admit()
        status = await sim.finish(name, seconds=200)
        assert status["failure"] == {
            "code": "job_lost",
            "message": "The provider has lost the job.",
        }
        times = sim.upstream.times("poll")
        assert len(times) >= polling.LOST_ANSWERS
        assert times[-1] - times[0] >= polling.LOST_SECONDS
        assert await sim.balance() == (0, 0)

    @in_virtual_time
    async def test_answer_resets_count_of_unknown_job(self) -> None:
        sim = await Simulation.start()
        sim.upstream.polls.extend(([GONE] * 4 + [JobReport(JobState.RUNNING)]) * 6)
        name = await sim.admit()
        assert (await sim.finish(name, seconds=590))["phase"] == "Completed"

    @in_virtual_time
    async def test_removed_provider_is_awaited(self) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=20))
        name = await sim.run()
        sim.kube.remove("gatewayproviders", "simulated")
        await sim.pass_time(60)
        assert not sim.is_ended(name)
        sim.put_provider()
        assert (await sim.finish(name))["phase"] == "Completed"


class TestFetching:
    @pytest.mark.parametrize(
        "error", [UpstreamUnclear("cut"), UpstreamBusy("busy"), UpstreamGone("gone")]
    )
    @in_virtual_time
    async def test_failed_download_is_retried(self, error: UpstreamError) -> None:
        sim = await Simulation.start()
        sim.upstream.fetches.extend([error] * 3)
        assert (await sim.finish(await sim.admit(), seconds=120))["phase"] == "Completed"

    @in_virtual_time
    async def test_download_is_given_up_after_some_attempts(self) -> None:
        sim = await Simulation.start()
        sim.upstream.fetches.extend([UpstreamUnclear("cut")] * 100)
        status = await sim.finish(await sim.admit(), seconds=300)
        assert status["failure"] == {
            "code": "output_unavailable",
            "message": "The output could not be fetched from the provider.",
        }
        assert sim.upstream.count("fetch") == polling.MOST_COPY_ATTEMPTS
        assert await sim.balance() == (0, 0)

    @in_virtual_time
    async def test_refused_output_is_not_retried(self) -> None:
        sim = await Simulation.start()
        sim.upstream.fetches.append(OutputRejected("The output's address is not allowed."))
        status = await sim.finish(await sim.admit())
        assert status["failure"]["code"] == "output_unavailable"
        assert sim.upstream.count("fetch") == 1

    @in_virtual_time
    async def test_copy_after_kill_replaces_the_first(self) -> None:
        sim = Simulation()
        sim.kube.order_faults("replace_status", None, None, Fault(KubernetesUnavailable("away")))
        await sim.boot()
        name = await sim.admit()
        await sim.wait(lambda: sim.upstream.count("fetch") == 1)
        await sim.pass_time(0.1)
        await sim.restart()
        status = await sim.finish(name)
        assert sim.upstream.count("fetch") == 2
        media = [key for key in sim.store.contents if key.startswith("media/")]
        assert media == [video["key"] for video in status["result"]["videos"]]
