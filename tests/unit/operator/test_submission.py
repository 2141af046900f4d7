"""A job is started once, whatever happens on the way (I2), and never sooner than it may be."""

import asyncio

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
from tests.unit.operator.harness import QUOTE, TASKS, Simulation

KEY, LOOKUP, NONE = SubmissionGuarantee
EVERY = pytest.mark.parametrize("guarantee", SubmissionGuarantee)


class TestRefusals:
    @EVERY
    @pytest.mark.parametrize("outcome", [Outcome.BUSY, Outcome.DENIED])
    @in_virtual_time
    async def test_refused_submission_is_repeated(
        self, guarantee: SubmissionGuarantee, outcome: Outcome
    ) -> None:
        sim = await Simulation.start(FakeUpstream(guarantee))
        sim.upstream.submissions.extend([outcome] * 3)
        name = await sim.admit()
        assert (await sim.finish(name))["phase"] == "Completed"
        assert sim.count_jobs(name) == 1
        assert sim.upstream.count("submit") == 4

    @EVERY
    @in_virtual_time
    async def test_rejected_input_fails_the_task(self, guarantee: SubmissionGuarantee) -> None:
        sim = await Simulation.start(FakeUpstream(guarantee))
        sim.upstream.submissions.append(Outcome.REJECTED)
        status = await sim.finish(await sim.admit())
        assert status["failure"] == {
            "code": "generation_failed",
            "message": "The prompt is not allowed.",
        }
        assert sim.upstream.count("submit") == 1
        assert await sim.balance() == (0, 0)

    @in_virtual_time
    async def test_retry_after_is_respected_when_the_task_changes(self) -> None:
        sim = await Simulation.start(FakeUpstream(retry_after=30.0))
        sim.upstream.submissions.append(Outcome.BUSY)
        name = await sim.admit()
        await sim.wait(lambda: sim.upstream.count("submit") == 1)
        for number in range(5):
            await sim.pass_time(1)
            await sim.change(name, {"metadata": {"annotations": {"note": str(number)}}})
        await sim.finish(name)
        first, second = sim.upstream.times("submit")
        assert second - first >= 30

    @EVERY
    @in_virtual_time
    async def test_pauses_between_submissions_grow(self, guarantee: SubmissionGuarantee) -> None:
        sim = await Simulation.start(FakeUpstream(guarantee))
        sim.upstream.submissions.extend([Outcome.BUSY] * 500)
        await sim.admit(deadline=3600)
        await sim.pass_time(600)
        assert 15 <= sim.upstream.count("submit") <= 40


class TestDenial:
    """A provider that refuses the gateway's credentials."""

    @EVERY
    @in_virtual_time
    async def test_task_fails_after_a_minute_of_refused_credentials(
        self, guarantee: SubmissionGuarantee
    ) -> None:
        sim = await Simulation.start(FakeUpstream(guarantee))
        sim.upstream.submissions.extend([Outcome.DENIED] * 100)
        name = await sim.admit()
        status = await sim.finish(name, seconds=120)
        assert status["failure"]["code"] == "provider_unavailable"
        assert sim.count_jobs(name) == 0
        assert await sim.balance() == (0, 0)
        times = sim.upstream.times("submit")
        assert times[-1] - times[0] > 60

    @in_virtual_time
    async def test_refused_credentials_cause_one_event(self) -> None:
        sim = await Simulation.start()
        sim.upstream.submissions.extend([Outcome.DENIED] * 100)
        for _ in range(3):
            await sim.admit(reserved=1)
        await sim.pass_time(50)
        told = [event for event in sim.kube.events if event[1] == "CredentialsRefused"]
        assert [event[0] for event in told] == ["simulated"]

    @in_virtual_time
    async def test_busy_answers_reset_the_minute_of_refusals(self) -> None:
        sim = Simulation(FakeUpstream(retry_after=50.0))
        denied, busy = Outcome.DENIED, Outcome.BUSY
        sim.upstream.submissions.extend([denied, busy, busy, denied, denied])
        await sim.boot()
        assert (await sim.finish(await sim.admit(), seconds=300))["phase"] == "Completed"


class TestUnclearOutcome:
    @pytest.mark.parametrize("outcome", [Outcome.UNCLEAR_WITH_JOB, Outcome.UNCLEAR_WITHOUT_JOB])
    @pytest.mark.parametrize("guarantee", [KEY, LOOKUP])
    @in_virtual_time
    async def test_unclear_outcome_is_resolved_by_key_or_lookup(
        self, guarantee: SubmissionGuarantee, outcome: Outcome
    ) -> None:
        sim = await Simulation.start(FakeUpstream(guarantee))
        sim.upstream.submissions.append(outcome)
        name = await sim.admit()
        assert (await sim.finish(name))["phase"] == "Completed"
        assert sim.count_jobs(name) == 1
        assert await sim.balance() == (QUOTE, 0)

    @pytest.mark.parametrize("outcome", [Outcome.UNCLEAR_WITH_JOB, Outcome.UNCLEAR_WITHOUT_JOB])
    @in_virtual_time
    async def test_unclear_outcome_without_key_or_lookup_fails_the_task(
        self, outcome: Outcome
    ) -> None:
        sim = await Simulation.start(FakeUpstream(NONE))
        sim.upstream.submissions.append(outcome)
        status = await sim.finish(await sim.admit())
        assert status["failure"]["code"] == "submission_unknown"
        assert sim.upstream.count("submit") == 1
        assert await sim.balance() == (0, 0)

    @in_virtual_time
    async def test_unclear_outcome_is_resubmitted_where_configured(self) -> None:
        sim = await Simulation.start(FakeUpstream(NONE, resubmits_unknown=True))
        sim.upstream.submissions.append(Outcome.UNCLEAR_WITHOUT_JOB)
        name = await sim.admit()
        assert (await sim.finish(name))["phase"] == "Completed"
        first, second = sim.upstream.times("submit")
        assert second - first >= sim.upstream.submit_seconds, "the first cannot be under way"

    @in_virtual_time
    async def test_failed_lookup_is_repeated(self) -> None:
        sim = await Simulation.start(FakeUpstream(LOOKUP))
        sim.upstream.submissions.append(Outcome.UNCLEAR_WITH_JOB)
        sim.upstream.finds.extend([UpstreamUnclear("500"), UpstreamBusy("busy")] * 3)
        name = await sim.admit()
        await sim.finish(name, seconds=120)
        assert sim.count_jobs(name) == 1
        assert sim.upstream.count("submit") == 1

    @in_virtual_time
    async def test_lookup_waits_for_late_job_before_new_one(self) -> None:
        sim = await Simulation.start(FakeUpstream(LOOKUP))
        sim.upstream.submissions.append(Outcome.UNCLEAR_WITHOUT_JOB)
        name = await sim.admit()
        await sim.finish(name)
        first, second = sim.upstream.times("submit")
        assert second - first >= sim.upstream.submit_seconds

    @pytest.mark.parametrize("guarantee", [LOOKUP, NONE])
    @in_virtual_time
    async def test_busy_after_unclear_does_not_rule_out_first_job(
        self, guarantee: SubmissionGuarantee
    ) -> None:
        sim = await Simulation.start(FakeUpstream(guarantee))
        sim.upstream.submissions.extend([Outcome.UNCLEAR_WITH_JOB, Outcome.BUSY])
        sim.upstream.finds.append(UpstreamBusy("busy"))
        name = await sim.admit()
        await sim.finish(name, seconds=120)
        assert sim.count_jobs(name) == 1


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
    @in_virtual_time
    async def test_failed_write_of_job_id_starts_no_second_job(
        self, guarantee: SubmissionGuarantee, fault: Fault
    ) -> None:
        sim = Simulation(FakeUpstream(guarantee))
        sim.kube.order_faults("replace_status", None, fault, fault)
        await sim.boot()
        name = await sim.admit()
        assert (await sim.finish(name))["phase"] == "Completed"
        assert sim.count_jobs(name) == 1
        assert sim.upstream.count("submit") == 1

    @EVERY
    @in_virtual_time
    async def test_change_during_submission_starts_no_second_job(
        self, guarantee: SubmissionGuarantee
    ) -> None:
        sim = await Simulation.start(FakeUpstream(guarantee, latency=4.0), lag=60)
        name = await sim.admit()
        sim.show(name)
        await sim.wait(lambda: sim.status(name))
        await sim.pass_time(3)
        await sim.change(name, {"metadata": {"annotations": {"note": "x"}}})
        assert (await sim.finish(name))["phase"] == "Completed"
        assert sim.count_jobs(name) == 1
        assert sim.upstream.count("submit") == 1

    @EVERY
    @in_virtual_time
    async def test_intent_that_could_not_be_read_back_starts_one_job(
        self, guarantee: SubmissionGuarantee
    ) -> None:
        sim = Simulation(FakeUpstream(guarantee))
        sim.kube.order_faults("replace_status", Fault(WriteOutcomeUnknown("cut"), applied=True))
        sim.kube.order_faults("get", Fault(KubernetesUnavailable("away")))
        await sim.boot()
        name = await sim.admit()
        assert (await sim.finish(name))["phase"] == "Completed"
        assert sim.count_jobs(name) == 1


class TestTakeover:
    """Another process goes on where one was killed."""

    @in_virtual_time
    async def test_late_call_of_killed_owner_is_found(self) -> None:
        sim = await Simulation.start(FakeUpstream(LOOKUP, latency=20.0, submit_seconds=40.0))
        name = await sim.admit()
        await sim.wait(lambda: sim.status(name))
        await sim.pass_time(1)
        await sim.restart()
        sim.upstream.latency = 0.02
        await sim.finish(name, seconds=120)
        assert sim.count_jobs(name) == 1
        assert sim.upstream.count("submit") == 1

    @in_virtual_time
    async def test_successor_waits_until_no_call_can_be_in_flight(self) -> None:
        sim = await Simulation.start(FakeUpstream(LOOKUP))
        name = await sim.admit()
        sim.upstream.latency = 1000.0
        await sim.wait(lambda: sim.status(name))
        began = asyncio.get_running_loop().time()
        await sim.pass_time(0.01)
        sim.upstream.latency = 0.02
        await sim.restart()
        await sim.finish(name)
        [submitted] = sim.upstream.times("submit")
        assert submitted - began >= sim.upstream.submit_seconds

    @in_virtual_time
    async def test_outcome_is_unknown_only_after_the_wait(self) -> None:
        sim = await Simulation.start(FakeUpstream(NONE))
        name = await sim.admit()
        await sim.wait(lambda: sim.upstream.jobs)
        began = asyncio.get_running_loop().time()
        await sim.restart()
        status = await sim.finish(name)
        assert status["failure"]["code"] == "submission_unknown"
        ended = asyncio.get_running_loop().time()
        assert ended - began >= sim.upstream.submit_seconds
        assert sim.count_jobs(name) == 1
        assert await sim.balance() == (0, 0)

    @in_virtual_time
    async def test_old_intent_is_renewed_before_submission(self) -> None:
        """So that an owner who was paused finds out that he is not the owner any more."""
        sim = await Simulation.start(FakeUpstream(LOOKUP, retry_after=20.0))
        sim.upstream.submissions.append(Outcome.BUSY)
        name = await sim.admit()
        await sim.finish(name)
        intents = {
            obj["status"]["upstream"]["intentTime"]
            for obj in sim.history[name]
            if "upstream" in obj.get("status", {})
        }
        assert len(intents) == 2

    @in_virtual_time
    async def test_slow_read_of_input_renews_the_intent(self) -> None:
        sim = Simulation(FakeUpstream(NONE))
        slow = sim.slow_store(8.0)
        await sim.boot()
        name = await sim.admit_stored(b'{"prompt":"long"}')
        await sim.pass_time(40)
        assert sim.upstream.calls == []
        slow.seconds = 0.5
        await sim.wait(lambda: sim.upstream.jobs)
        [submitted] = sim.upstream.times("submit")
        assert submitted - sim.newest_intent(name) <= 6, "the intent is fresh at the call"


@pytest.mark.parametrize("guarantee", SubmissionGuarantee)
@pytest.mark.parametrize("outcome", [Outcome.BUSY, Outcome.UNCLEAR_WITHOUT_JOB])
@in_virtual_time
async def test_deadline_holds_during_long_retry_after(
    guarantee: SubmissionGuarantee, outcome: Outcome
) -> None:
    sim = await Simulation.start(FakeUpstream(guarantee, retry_after=120.0, submit_seconds=300.0))
    sim.upstream.submissions.extend([outcome] * 1000)
    name = await sim.admit(deadline=20)
    status = await sim.finish(name, seconds=25)
    assert status["failure"]["code"] == "provider_unavailable"
    assert await sim.balance() == (0, 0)


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
@in_virtual_time
async def test_job_of_another_task_is_not_taken(
    guarantee: SubmissionGuarantee, restarted: bool
) -> None:
    sim = await Simulation.start(OneIdForAll(guarantee, seconds=20))
    first = await sim.admit()
    await sim.wait(lambda: sim.status(first).get("phase") == "Running")
    if restarted:
        await sim.restart()
    second = await sim.admit(deadline=60)
    assert (await sim.finish(first))["phase"] == "Completed"
    ended = await sim.finish(second, seconds=100)
    expected = "submission_unknown" if guarantee is NONE else "provider_unavailable"
    assert ended["failure"]["code"] == expected
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_takeover_wait_does_not_depend_on_other_clock() -> None:
    sim = await Simulation.start(FakeUpstream(NONE))
    name = await sim.admit()
    await sim.wait(lambda: sim.upstream.jobs)
    await sim.kill()
    upstream = sim.status(name)["upstream"] | {"intentTime": "2026-11-21T09:00:00.000000Z"}
    obj = await sim.kube.get(TASKS, name)
    assert "jobId" not in upstream
    await sim.kube.patch_status(TASKS, obj, {"upstream": upstream})
    began = asyncio.get_running_loop().time()
    await sim.boot_without_books()
    status = await sim.finish(name)
    assert status["failure"]["code"] == "submission_unknown"
    ended = asyncio.get_running_loop().time()
    assert ended - began >= FRESH_SECONDS + sim.upstream.submit_seconds
