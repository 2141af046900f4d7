"""A task from its creation to its end: from REST and from kubectl."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway_core.api.resource import Object
from gateway_core.kube.errors import WriteOutcomeUnknown
from gateway_core.providers.upstream import JobReport, JobState, SubmissionGuarantee
from gateway_operator.tasks.controller import MOST_ADOPTIONS
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import Fault
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.harness import QUOTE, TASKS, Stage


class TestFromRest:
    @in_virtual_time
    async def test_three_status_writes_and_one_finalizer_removal(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        status = await stage.finish(name)
        assert status["phase"] == "Completed"
        writes = [call for call in stage.kube.calls if call[1] == TASKS]
        assert writes.count(("replace_status", TASKS)) == 3
        assert writes.count(("patch", TASKS)) == 1
        assert stage.count_jobs(name) == 1
        assert await stage.balance() == (QUOTE, 0)
        stage.check_history()
        await stage.check_archive()

    @in_virtual_time
    async def test_no_write_for_however_many_polls(self) -> None:
        stage = Stage(FakeUpstream(seconds=500))
        await stage.boot()
        name = await stage.admit()
        await stage.finish(name, seconds=600)
        assert stage.upstream.count("poll") > 20
        assert stage.kube.calls.count(("replace_status", TASKS)) == 3

    @in_virtual_time
    async def test_the_status_tells_the_story(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        status = await stage.finish(name)
        [video] = status["result"]["videos"]
        assert video["url"].startswith("https://media.example/media/" + stage.uid(name))
        assert stage.store.contents[video["key"]] == b"a video"
        assert video["bytes"] == len(b"a video")
        assert video["contentType"] == "video/mp4"
        assert status["chargedMicros"] == QUOTE
        assert status["cost"] == "0.30"
        assert status["upstream"]["providerName"] == "simulated"
        phases = [obj.get("status", {}).get("phase") for obj in stage.history[name]]
        assert list(dict.fromkeys(phases)) == [None, "Submitting", "Running", "Completed"]

    @in_virtual_time
    async def test_the_provider_gets_the_input_as_it_was_admitted(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit(input='{"prompt":"as admitted"}')
        await stage.finish(name)
        [job] = stage.upstream.jobs
        assert job.input == {"prompt": "as admitted"}
        assert job.reference == stage.uid(name)

    @in_virtual_time
    async def test_fewer_seconds_than_asked_for_cost_less(self) -> None:
        stage = Stage(FakeUpstream(made_seconds=4.5))
        await stage.boot()
        name = await stage.admit()
        status = await stage.finish(name)
        assert status["chargedMicros"] == 270_000
        assert await stage.balance() == (270_000, 0)

    @in_virtual_time
    async def test_more_seconds_than_asked_for_cost_what_was_held(self) -> None:
        stage = Stage(FakeUpstream(made_seconds=60.0))
        await stage.boot()
        assert (await stage.finish(await stage.admit()))["chargedMicros"] == QUOTE

    @in_virtual_time
    async def test_many_at_once(self) -> None:
        stage = Stage()
        await stage.boot()
        names = [await stage.admit(reserved=10) for _ in range(50)]
        for name in names:
            await stage.finish(name)
        assert len(stage.upstream.jobs) == 50
        assert await stage.balance() == (500, 0)
        stage.check_history()

    @in_virtual_time
    async def test_a_task_of_a_model_that_is_gone_ends_all_the_same(self) -> None:
        stage = Stage(FakeUpstream(seconds=20, made_seconds=1.0))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.upstream.jobs)
        stage.kube.remove("gatewaymodels", "sim-q4")
        assert (await stage.finish(name))["chargedMicros"] == 60_000

    @in_virtual_time
    async def test_a_provider_that_comes_late_is_waited_for(self) -> None:
        stage = Stage()
        stage.kube.remove("gatewayproviders", "simulated")
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.kube.calls.count(("replace_status", TASKS)) == 0)
        stage.put_provider()
        assert (await stage.finish(name))["phase"] == "Completed"
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_the_first_usable_route_is_taken(self) -> None:
        stage = Stage()
        stage.put_model(
            routes=[
                {"name": "a", "providerName": "nobody", "upstreamModel": "x"},
                {"name": "b", "providerName": "simulated", "upstreamModel": "q4"},
            ]
        )
        await stage.boot()
        status = await stage.finish(await stage.admit())
        assert status["upstream"]["providerName"] == "simulated"

    @in_virtual_time
    async def test_counters_that_are_away_stop_nothing(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        stage.counters.away = True
        assert (await stage.finish(name))["phase"] == "Completed"
        stage.counters.away = False
        assert await stage.balance() == (0, QUOTE)
        assert stage.operator
        await stage.wait(lambda: stage.operator.metrics.stray_holds._value.get(), seconds=400)
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_counters_that_have_lost_everything_are_rebuilt_from_the_record(self) -> None:
        stage = Stage(FakeUpstream(seconds=30))
        await stage.boot()
        first = await stage.admit()
        await stage.wait(lambda: stage.upstream.jobs)
        stage.counters.lose()
        await stage.finish(first)
        await stage.open_books("demo")
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_a_record_that_is_away_for_a_while_stops_nothing(self) -> None:
        stage = Stage()
        await stage.boot()
        names = [await stage.admit() for _ in range(3)]
        await stage.wait(lambda: all(stage.status(n).get("phase") == "Running" for n in names))
        stage.kube.away = True
        await stage.wait(lambda: stage.upstream.count("fetch") > 6)
        stage.kube.away = False
        for name in names:
            assert (await stage.finish(name, seconds=120))["phase"] == "Completed"
        assert len(stage.upstream.jobs) == 3
        stage.check_history()

    @pytest.mark.parametrize("applied", [True, False])
    @pytest.mark.parametrize("number", range(3))
    def test_a_write_whose_answer_is_lost_is_looked_up(self, number: int, applied: bool) -> None:
        @in_virtual_time
        async def run() -> None:
            stage = Stage()
            fault = Fault(WriteOutcomeUnknown("cut"), applied=applied)
            stage.kube.order_faults("replace_status", *[None] * number, fault)
            await stage.boot()
            name = await stage.admit()
            assert (await stage.finish(name))["phase"] == "Completed"
            assert stage.count_jobs(name) == 1
            assert await stage.balance() == (QUOTE, 0)
            stage.check_history()

        run()

    @in_virtual_time
    async def test_a_record_that_answers_no_write_is_not_hammered(self) -> None:
        stage = Stage()
        await stage.boot()
        cut = [Fault(WriteOutcomeUnknown("500"), applied=False) for _ in range(10_000)]
        stage.kube.order_faults("replace_status", *cut)
        await stage.admit()
        begin = len(stage.kube.calls)
        await stage.pass_time(10)
        assert len(stage.kube.calls) - begin < 100


class TestOutputs:
    @in_virtual_time
    async def test_several_outputs_are_kept_in_order(self) -> None:
        stage = Stage(FakeUpstream(outputs=("https://p/a", "https://p/b")))
        await stage.boot()
        name = await stage.admit()
        videos = (await stage.finish(name))["result"]["videos"]
        uid = stage.uid(name)
        assert [video["key"] for video in videos] == [f"media/{uid}/0", f"media/{uid}/1"]

    @in_virtual_time
    async def test_an_output_that_is_too_large_fails_the_task(self) -> None:
        stage = Stage(FakeUpstream(content=b"x" * 1001))
        await stage.boot()
        name = await stage.admit()
        status = await stage.finish(name)
        assert status["failure"] == {
            "code": "output_unavailable",
            "message": "The output is larger than allowed.",
        }
        assert await stage.balance() == (0, 0)

    @in_virtual_time
    async def test_a_store_that_is_away_is_waited_for(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        stage.store.away = True
        await stage.wait(lambda: stage.upstream.count("fetch") > 2)
        assert not stage.is_ended(name)
        stage.store.away = False
        assert (await stage.finish(name))["phase"] == "Completed"
        assert await stage.balance() == (QUOTE, 0)


@pytest.mark.parametrize("guarantee", list(SubmissionGuarantee))
@pytest.mark.parametrize(
    ("report", "text"),
    [
        (JobReport(JobState.FAILED, message="The prompt is not allowed."), "not allowed"),
        (JobReport(JobState.FAILED), "could not generate"),
        (JobReport(JobState.CANCELLED), "cancelled the job"),
    ],
)
def test_a_job_that_fails_fails_the_task_and_costs_nothing(
    guarantee: SubmissionGuarantee, report: JobReport, text: str
) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage(FakeUpstream(guarantee))
        stage.upstream.polls.append(report)
        await stage.boot()
        status = await stage.finish(await stage.admit())
        assert status["failure"]["code"] == "generation_failed"
        assert text in status["failure"]["message"]
        assert await stage.balance() == (0, 0)

    run()


@in_virtual_time
async def test_a_burst_of_new_tasks_keeps_no_end_waiting() -> None:
    stage = Stage(FakeUpstream(seconds=20))
    await stage.boot()
    running = await stage.admit()
    await stage.wait(lambda: stage.status(running).get("phase") == "Running")
    write, under_way, most = stage.kube.replace_status, set[str](), 0
    going_on = asyncio.Event()

    async def halt_intents(plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        nonlocal most
        name = obj["metadata"]["name"]
        if status.get("phase") == "Submitting":
            under_way.add(name)
            most = max(most, len(under_way))
            await going_on.wait()
            under_way.discard(name)
        return await write(plural, obj, status)

    stage.kube.replace_status = halt_intents  # type: ignore[method-assign]
    burst = [await stage.admit() for _ in range(3 * MOST_ADOPTIONS)]
    await stage.finish(running)
    assert most == len(under_way) == MOST_ADOPTIONS
    cancelled = burst[-1]
    await stage.cancel(cancelled)
    going_on.set()
    for name in burst:
        ended = await stage.finish(name)
        assert ended["phase"] == ("Failed" if name == cancelled else "Completed")
    assert most == MOST_ADOPTIONS
    assert stage.upstream.count("submit") == len(burst), "the one that was cancelled was not"
