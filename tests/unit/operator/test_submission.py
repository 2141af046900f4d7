"""A job is started once, whatever happens on the way (I2), and never sooner than it may be."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway_core.kube.errors import KubernetesUnavailable, WriteOutcomeUnknown
from gateway_core.providers.upstream import (
    JobInput,
    SubmissionGuarantee,
    UpstreamBusy,
    UpstreamUnclear,
)
from gateway_operator.tasks.attempts import FRESH_SECONDS
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import Fault
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.harness import QUOTE, TASKS, Stage

KEY, LOOKUP, NONE = (
    SubmissionGuarantee.IDEMPOTENCY_KEY,
    SubmissionGuarantee.LOOKUP,
    SubmissionGuarantee.NONE,
)
EVERY = pytest.mark.parametrize("guarantee", [KEY, LOOKUP, NONE])


def play(test: Callable[..., Any]) -> None:
    """Runs a test that has parameters in virtual time."""
    in_virtual_time(test)()


class TestRefusals:
    @EVERY
    @pytest.mark.parametrize("outcome", [Outcome.BUSY, Outcome.DENIED])
    def test_what_was_not_taken_is_submitted_again(
        self, guarantee: SubmissionGuarantee, outcome: Outcome
    ) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee))
            stage.upstream.submissions.extend([outcome] * 3)
            await stage.boot()
            name = await stage.admit()
            assert (await stage.finish(name))["phase"] == "Completed"
            assert stage.count_jobs(name) == 1
            assert stage.upstream.count("submit") == 4

        play(run)

    @EVERY
    def test_a_rejected_input_fails_the_task(self, guarantee: SubmissionGuarantee) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee))
            stage.upstream.submissions.append(Outcome.REJECTED)
            await stage.boot()
            status = await stage.finish(await stage.admit())
            assert status["failure"] == {
                "code": "generation_failed",
                "message": "The prompt is not allowed.",
            }
            assert stage.upstream.count("submit") == 1
            assert await stage.balance() == (0, 0)

        play(run)

    @in_virtual_time
    async def test_a_provider_that_says_when_to_come_back_is_left_alone_until_then(self) -> None:
        stage = Stage(FakeUpstream(retry_after=30.0))
        stage.upstream.submissions.append(Outcome.BUSY)
        await stage.boot()
        await stage.finish(await stage.admit())
        first, second = stage.upstream.times("submit")
        assert second - first >= 30

    @in_virtual_time
    async def test_it_is_left_alone_whatever_else_happens_to_the_task(self) -> None:
        stage = Stage(FakeUpstream(retry_after=30.0))
        stage.upstream.submissions.append(Outcome.BUSY)
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.upstream.count("submit") == 1)
        for number in range(5):
            await stage.pass_time(1)
            await stage.change(name, {"metadata": {"annotations": {"note": str(number)}}})
        await stage.finish(name)
        first, second = stage.upstream.times("submit")
        assert second - first >= 30

    @EVERY
    def test_pauses_grow(self, guarantee: SubmissionGuarantee) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee))
            stage.upstream.submissions.extend([Outcome.BUSY] * 500)
            await stage.boot()
            await stage.admit(deadline=3600)
            await stage.pass_time(600)
            assert 15 <= stage.upstream.count("submit") <= 40

        play(run)


class TestDenial:
    """A provider that refuses the gateway's credentials."""

    @EVERY
    def test_after_a_minute_the_task_fails(self, guarantee: SubmissionGuarantee) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee))
            stage.upstream.submissions.extend([Outcome.DENIED] * 100)
            await stage.boot()
            name = await stage.admit()
            status = await stage.finish(name, seconds=120)
            assert status["failure"]["code"] == "provider_unavailable"
            assert stage.count_jobs(name) == 0
            assert await stage.balance() == (0, 0)
            times = stage.upstream.times("submit")
            assert times[-1] - times[0] > 60

        play(run)

    @in_virtual_time
    async def test_admins_are_told_once(self) -> None:
        stage = Stage()
        stage.upstream.submissions.extend([Outcome.DENIED] * 100)
        await stage.boot()
        for _ in range(3):
            await stage.admit(reserved=1)
        await stage.pass_time(50)
        told = [event for event in stage.kube.events if event[1] == "CredentialsRefused"]
        assert [event[0] for event in told] == ["simulated"]

    @in_virtual_time
    async def test_a_minute_is_a_minute_of_nothing_but_refusals(self) -> None:
        stage = Stage(FakeUpstream(retry_after=50.0))
        denied, busy = Outcome.DENIED, Outcome.BUSY
        stage.upstream.submissions.extend([denied, busy, busy, denied, denied])
        await stage.boot()
        assert (await stage.finish(await stage.admit(), seconds=300))["phase"] == "Completed"


class TestUnclearOutcome:
    @pytest.mark.parametrize("outcome", [Outcome.UNCLEAR_WITH_JOB, Outcome.UNCLEAR_WITHOUT_JOB])
    @pytest.mark.parametrize("guarantee", [KEY, LOOKUP])
    def test_a_key_or_a_look_up_clears_it_up(
        self, guarantee: SubmissionGuarantee, outcome: Outcome
    ) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee))
            stage.upstream.submissions.append(outcome)
            await stage.boot()
            name = await stage.admit()
            assert (await stage.finish(name))["phase"] == "Completed"
            assert stage.count_jobs(name) == 1
            assert await stage.balance() == (QUOTE, 0)

        play(run)

    @pytest.mark.parametrize("outcome", [Outcome.UNCLEAR_WITH_JOB, Outcome.UNCLEAR_WITHOUT_JOB])
    def test_without_either_it_is_not_tried_again(self, outcome: Outcome) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(NONE))
            stage.upstream.submissions.append(outcome)
            await stage.boot()
            status = await stage.finish(await stage.admit())
            assert status["failure"]["code"] == "submission_unknown"
            assert stage.upstream.count("submit") == 1
            assert await stage.balance() == (0, 0)

        play(run)

    @in_virtual_time
    async def test_unless_the_providers_owner_says_so(self) -> None:
        stage = Stage(FakeUpstream(NONE, resubmits_unknown=True))
        stage.upstream.submissions.append(Outcome.UNCLEAR_WITHOUT_JOB)
        await stage.boot()
        name = await stage.admit()
        assert (await stage.finish(name))["phase"] == "Completed"
        first, second = stage.upstream.times("submit")
        assert second - first >= stage.upstream.submit_seconds, "the first cannot be under way"

    @in_virtual_time
    async def test_a_look_up_that_fails_is_no_answer(self) -> None:
        stage = Stage(FakeUpstream(LOOKUP))
        stage.upstream.submissions.append(Outcome.UNCLEAR_WITH_JOB)
        stage.upstream.finds.extend([UpstreamUnclear("500"), UpstreamBusy("busy")] * 3)
        await stage.boot()
        name = await stage.admit()
        await stage.finish(name, seconds=120)
        assert stage.count_jobs(name) == 1
        assert stage.upstream.count("submit") == 1

    @in_virtual_time
    async def test_a_job_that_shows_late_is_waited_for_before_another_is_started(self) -> None:
        stage = Stage(FakeUpstream(LOOKUP))
        stage.upstream.submissions.append(Outcome.UNCLEAR_WITHOUT_JOB)
        await stage.boot()
        name = await stage.admit()
        await stage.finish(name)
        first, second = stage.upstream.times("submit")
        assert second - first >= stage.upstream.submit_seconds

    @pytest.mark.parametrize("guarantee", [LOOKUP, NONE])
    def test_busy_after_unclear_proves_nothing_of_the_first(
        self, guarantee: SubmissionGuarantee
    ) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee))
            stage.upstream.submissions.extend([Outcome.UNCLEAR_WITH_JOB, Outcome.BUSY])
            stage.upstream.finds.append(UpstreamBusy("busy"))
            await stage.boot()
            name = await stage.admit()
            await stage.finish(name, seconds=120)
            assert stage.count_jobs(name) == 1

        play(run)


class TestRecordTrouble:
    """The job was started, and writing its id down does not succeed at once."""

    @EVERY
    @pytest.mark.parametrize(
        "fault",
        [
            Fault(KubernetesUnavailable("away")),
            Fault(WriteOutcomeUnknown("cut"), applied=False),
            Fault(WriteOutcomeUnknown("cut"), applied=True),
        ],
        ids=["nothing written", "lost", "answer lost"],
    )
    def test_no_other_job_is_started(self, guarantee: SubmissionGuarantee, fault: Fault) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee))
            stage.kube.order_faults("replace_status", None, fault, fault)
            await stage.boot()
            name = await stage.admit()
            assert (await stage.finish(name))["phase"] == "Completed"
            assert stage.count_jobs(name) == 1
            assert stage.upstream.count("submit") == 1

        play(run)

    @EVERY
    def test_nor_when_the_task_is_changed_meanwhile(self, guarantee: SubmissionGuarantee) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee, latency=4.0), lag=60)
            await stage.boot()
            name = await stage.admit()
            stage.show(name)
            await stage.wait(lambda: stage.status(name))
            await stage.pass_time(3)
            await stage.change(name, {"metadata": {"annotations": {"note": "x"}}})
            assert (await stage.finish(name))["phase"] == "Completed"
            assert stage.count_jobs(name) == 1
            assert stage.upstream.count("submit") == 1

        play(run)

    @EVERY
    def test_an_intent_whose_answer_is_lost_starts_one_job(
        self, guarantee: SubmissionGuarantee
    ) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee))
            fault = Fault(WriteOutcomeUnknown("cut"), applied=True)
            stage.kube.order_faults("replace_status", fault)
            await stage.boot()
            name = await stage.admit()
            assert (await stage.finish(name))["phase"] == "Completed"
            assert stage.count_jobs(name) == 1

        play(run)


class TestTakeover:
    """Another process goes on where one was killed."""

    @EVERY
    def test_a_job_that_was_recorded_is_polled_on(self, guarantee: SubmissionGuarantee) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee))
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.status(name).get("phase") == "Running")
            await stage.restart()
            assert (await stage.finish(name))["phase"] == "Completed"
            assert stage.upstream.count("submit") == 1

        play(run)

    @pytest.mark.parametrize("guarantee", [KEY, LOOKUP])
    @pytest.mark.parametrize("reached", [True, False])
    def test_a_submission_that_was_cut_short_is_taken_up(
        self, guarantee: SubmissionGuarantee, reached: bool
    ) -> None:
        async def run() -> None:
            stage = Stage(FakeUpstream(guarantee, latency=2.0))
            await stage.boot()
            name = await stage.admit()
            await stage.wait(lambda: stage.status(name))
            if reached:
                await stage.wait(lambda: stage.upstream.jobs)
            await stage.restart()
            assert (await stage.finish(name))["phase"] == "Completed"
            assert stage.count_jobs(name) == 1

        play(run)

    @in_virtual_time
    async def test_the_dead_ones_call_may_still_arrive_and_is_found(self) -> None:
        stage = Stage(FakeUpstream(LOOKUP, latency=20.0, submit_seconds=40.0))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.status(name))
        await stage.pass_time(1)
        await stage.restart()
        stage.upstream.latency = 0.02
        await stage.finish(name, seconds=120)
        assert stage.count_jobs(name) == 1
        assert stage.upstream.count("submit") == 1

    @in_virtual_time
    async def test_it_waits_until_no_call_can_be_under_way(self) -> None:
        stage = Stage(FakeUpstream(LOOKUP))
        await stage.boot()
        name = await stage.admit()
        stage.upstream.latency = 1000.0
        await stage.wait(lambda: stage.status(name))
        began = asyncio.get_running_loop().time()
        await stage.pass_time(0.01)
        stage.upstream.latency = 0.02
        await stage.restart()
        await stage.finish(name)
        [submitted] = stage.upstream.times("submit")
        assert submitted - began >= stage.upstream.submit_seconds

    @in_virtual_time
    async def test_without_means_the_outcome_is_unknown_only_after_that_wait(self) -> None:
        stage = Stage(FakeUpstream(NONE))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.upstream.jobs)
        began = asyncio.get_running_loop().time()
        await stage.restart()
        status = await stage.finish(name)
        assert status["failure"]["code"] == "submission_unknown"
        ended = asyncio.get_running_loop().time()
        assert ended - began >= stage.upstream.submit_seconds
        assert stage.count_jobs(name) == 1
        assert await stage.balance() == (0, 0)

    @in_virtual_time
    async def test_an_intent_that_is_old_is_written_anew_before_a_job_is_started(self) -> None:
        """So that an owner who was paused finds out that he is not the owner any more."""
        stage = Stage(FakeUpstream(LOOKUP, retry_after=20.0))
        stage.upstream.submissions.append(Outcome.BUSY)
        await stage.boot()
        name = await stage.admit()
        await stage.finish(name)
        intents = {
            obj["status"]["upstream"]["intentTime"]
            for obj in stage.history[name]
            if "upstream" in obj.get("status", {})
        }
        assert len(intents) == 2

    @in_virtual_time
    async def test_reading_the_input_may_take_long(self) -> None:
        stage = Stage(FakeUpstream(NONE))
        slow = stage.slow_store(8.0)
        await stage.boot()
        name = await stage.admit_stored(b'{"prompt":"long"}')
        await stage.pass_time(40)
        assert stage.upstream.calls == []
        slow.seconds = 0.5
        await stage.wait(lambda: stage.upstream.jobs)
        [submitted] = stage.upstream.times("submit")
        assert submitted - stage.newest_intent(name) <= 6, "the intent is fresh at the call"


@pytest.mark.parametrize("guarantee", [KEY, LOOKUP, NONE])
@pytest.mark.parametrize("outcome", [Outcome.BUSY, Outcome.UNCLEAR_WITHOUT_JOB])
def test_the_deadline_holds_however_long_the_provider_wants_to_be_left_alone(
    guarantee: SubmissionGuarantee, outcome: Outcome
) -> None:
    async def run() -> None:
        stage = Stage(FakeUpstream(guarantee, retry_after=120.0, submit_seconds=300.0))
        stage.upstream.submissions.extend([outcome] * 1000)
        await stage.boot()
        name = await stage.admit(deadline=20)
        status = await stage.finish(name, seconds=25)
        assert status["failure"]["code"] == "provider_unavailable"
        assert await stage.balance() == (0, 0)

    play(run)


class OneIdForAll(FakeUpstream):
    """A provider that gives every task the id of its first job."""

    async def submit(self, job: JobInput) -> str:
        await super().submit(job)
        return self.jobs[0].id

    async def find(self, reference: str) -> str | None:
        found = await super().find(reference)
        return found and self.jobs[0].id


@EVERY
@pytest.mark.parametrize("restarted", [True, False])
def test_no_task_takes_the_job_of_another(guarantee: SubmissionGuarantee, restarted: bool) -> None:
    async def run() -> None:
        stage = Stage(OneIdForAll(guarantee, seconds=20))
        await stage.boot()
        first = await stage.admit()
        await stage.wait(lambda: stage.status(first).get("phase") == "Running")
        if restarted:
            await stage.restart()
        second = await stage.admit(deadline=60)
        assert (await stage.finish(first))["phase"] == "Completed"
        ended = await stage.finish(second, seconds=100)
        expected = "submission_unknown" if guarantee is NONE else "provider_unavailable"
        assert ended["failure"]["code"] == expected
        assert await stage.balance() == (QUOTE, 0)

    play(run)


@in_virtual_time
async def test_a_takeover_waits_as_long_whatever_the_other_ones_clock_says() -> None:
    stage = Stage(FakeUpstream(NONE))
    await stage.boot()
    name = await stage.admit()
    await stage.wait(lambda: stage.upstream.jobs)
    await stage.kill()
    upstream = stage.status(name)["upstream"] | {"intentTime": "2026-11-21T09:00:00.000000Z"}
    obj = await stage.kube.get(TASKS, name)
    assert "jobId" not in upstream
    await stage.kube.patch_status(TASKS, obj, {"upstream": upstream})
    began = asyncio.get_running_loop().time()
    await stage.boot_without_books()
    status = await stage.finish(name)
    assert status["failure"]["code"] == "submission_unknown"
    ended = asyncio.get_running_loop().time()
    assert ended - began >= FRESH_SECONDS + stage.upstream.submit_seconds
