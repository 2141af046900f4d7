"""A task from its creation to its end: from REST and from kubectl."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway_core.api.resource import Object
from gateway_core.kube.errors import WriteOutcomeUnknown
from gateway_core.providers.upstream import Download, JobReport, JobState, SubmissionGuarantee
from gateway_operator.tasks.calls import PLACES, Outputs
from gateway_operator.tasks.controller import MOST_ADOPTIONS
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import Fault
from tests.fakes.objects import FakeObjects
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.environment import read_now
from tests.unit.operator.harness import QUOTE, SIGNER, TASKS, Simulation


class TestFromRest:
    @in_virtual_time
    async def test_three_status_writes_and_one_finalizer_removal(self) -> None:
        sim = await Simulation.start()
        name = await sim.admit()
        status = await sim.finish(name)
        assert (status["phase"], status["work"]) == ("Completed", "Settled")
        assert "callback" not in status
        writes = [call for call in sim.kube.calls if call[1] == TASKS]
        assert writes.count(("replace_status", TASKS)) == 3
        assert writes.count(("patch", TASKS)) == 1
        assert sim.count_jobs(name) == 1
        assert await sim.balance() == (QUOTE, 0)
        sim.check_history()
        await sim.check_archive()

    @in_virtual_time
    async def test_polls_write_nothing(self) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=500))
        name = await sim.admit()
        await sim.finish(name, seconds=600)
        assert sim.upstream.count("poll") > 20
        assert sim.kube.calls.count(("replace_status", TASKS)) == 3

    @in_virtual_time
    async def test_conditions_follow_the_phases(self) -> None:
        sim = await Simulation.start()
        name = await sim.admit()
        status = await sim.finish(name)
        [video] = status["result"]["videos"]
        assert video["url"].startswith("https://media.example/media/" + sim.uid(name))
        assert sim.store.contents[video["key"]] == b"a video"
        assert video["bytes"] == len(b"a video")
        assert video["contentType"] == "video/mp4"
        assert status["chargedMicros"] == QUOTE
        assert status["cost"] == "0.30"
        assert status["upstream"]["providerName"] == "simulated"
        phases = [obj.get("status", {}).get("phase") for obj in sim.history[name]]
        assert list(dict.fromkeys(phases)) == [None, "Submitting", "Running", "Completed"]

    @in_virtual_time
    async def test_provider_receives_admitted_input(self) -> None:
        sim = await Simulation.start()
        name = await sim.admit(input='{"prompt":"as admitted"}')
        await sim.finish(name)
        [job] = sim.upstream.jobs
        assert job.input == {"prompt": "as admitted"}
        assert job.reference == sim.uid(name)

    @pytest.mark.parametrize(("made", "micros"), [(4.5, 270_000), (60.0, QUOTE)])
    @in_virtual_time
    async def test_output_is_charged_by_length_up_to_the_reservation(
        self, made: float, micros: int
    ) -> None:
        sim = await Simulation.start(FakeUpstream(made_seconds=made))
        assert (await sim.finish(await sim.admit()))["chargedMicros"] == micros
        assert await sim.balance() == (micros, 0)

    @in_virtual_time
    async def test_first_usable_route_is_used(self) -> None:
        sim = Simulation()
        sim.put_model(
            routes=[
                {"name": "a", "providerName": "nobody", "upstreamModel": "x"},
                {"name": "b", "providerName": "simulated", "upstreamModel": "q4"},
            ]
        )
        await sim.boot()
        status = await sim.finish(await sim.admit())
        assert status["upstream"]["providerName"] == "simulated"

    @in_virtual_time
    async def test_unavailable_counters_do_not_stop_tasks(self) -> None:
        sim = await Simulation.start()
        name = await sim.admit()
        sim.counters.away = True
        assert (await sim.finish(name))["phase"] == "Completed"
        sim.counters.away = False
        assert await sim.balance() == (0, QUOTE)
        await sim.wait(lambda: sim.running.metrics.stray_holds._value.get(), seconds=400)
        assert await sim.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_unavailable_kubernetes_api_delays_tasks_only(self) -> None:
        sim = await Simulation.start()
        names = [await sim.admit() for _ in range(3)]
        await sim.wait(lambda: all(sim.status(n).get("phase") == "Running" for n in names))
        sim.kube.away = True
        await sim.wait(lambda: sim.upstream.count("fetch") > 6)
        sim.kube.away = False
        for name in names:
            assert (await sim.finish(name, seconds=120))["phase"] == "Completed"
        assert len(sim.upstream.jobs) == 3
        sim.check_history()

    @pytest.mark.parametrize("applied", [True, False])
    @pytest.mark.parametrize("number", range(3))
    @in_virtual_time
    async def test_write_with_lost_response_is_read_back(self, number: int, applied: bool) -> None:
        sim = Simulation()
        fault = Fault(WriteOutcomeUnknown("cut"), applied=applied)
        sim.kube.order_faults("replace_status", *[None] * number, fault)
        await sim.boot()
        name = await sim.admit()
        assert (await sim.finish(name))["phase"] == "Completed"
        assert sim.count_jobs(name) == 1
        assert await sim.balance() == (QUOTE, 0)
        sim.check_history()

    @in_virtual_time
    async def test_failing_writes_are_repeated_with_back_off(self) -> None:
        sim = await Simulation.start()
        cut = [Fault(WriteOutcomeUnknown("500"), applied=False) for _ in range(10_000)]
        sim.kube.order_faults("replace_status", *cut)
        await sim.admit()
        begin = len(sim.kube.calls)
        await sim.pass_time(10)
        assert len(sim.kube.calls) - begin < 100


class TestOutputs:
    @in_virtual_time
    async def test_outputs_keep_their_order(self) -> None:
        sim = await Simulation.start(FakeUpstream(outputs=("https://p/a", "https://p/b")))
        name = await sim.admit()
        videos = (await sim.finish(name))["result"]["videos"]
        uid = sim.uid(name)
        assert [video["key"] for video in videos] == [f"media/{uid}/0", f"media/{uid}/1"]

    @in_virtual_time
    async def test_output_that_is_too_large_fails_the_task(self) -> None:
        sim = await Simulation.start(FakeUpstream(content=b"x" * 1001))
        name = await sim.admit()
        status = await sim.finish(name)
        assert status["failure"] == {
            "code": "output_unavailable",
            "message": "The output is larger than allowed.",
        }
        assert await sim.balance() == (0, 0)

    @in_virtual_time
    async def test_unavailable_store_is_awaited(self) -> None:
        sim = await Simulation.start()
        name = await sim.admit()
        await sim.wait(lambda: sim.upstream.jobs)
        sim.store.away = True
        await sim.wait(lambda: sim.upstream.count("fetch") > 2)
        assert not sim.is_ended(name)
        sim.store.away = False
        assert (await sim.finish(name))["phase"] == "Completed"
        assert await sim.balance() == (QUOTE, 0)


@pytest.mark.parametrize("guarantee", SubmissionGuarantee)
@pytest.mark.parametrize(
    ("report", "text"),
    [
        (JobReport(JobState.FAILED, message="The prompt is not allowed."), "not allowed"),
        (JobReport(JobState.FAILED), "could not generate"),
        (JobReport(JobState.CANCELLED), "cancelled the job"),
    ],
)
@in_virtual_time
async def test_failed_job_fails_the_task_at_no_cost(
    guarantee: SubmissionGuarantee, report: JobReport, text: str
) -> None:
    sim = await Simulation.start(FakeUpstream(guarantee))
    sim.upstream.polls.append(report)
    status = await sim.finish(await sim.admit())
    assert status["failure"]["code"] == "generation_failed"
    assert text in status["failure"]["message"]
    assert await sim.balance() == (0, 0)


@in_virtual_time
async def test_burst_of_new_tasks_does_not_delay_ends() -> None:
    sim = await Simulation.start(FakeUpstream(seconds=20))
    running = await sim.admit()
    await sim.wait(lambda: sim.status(running).get("phase") == "Running")
    write, under_way, most = sim.kube.replace_status, set[str](), 0
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

    sim.kube.replace_status = halt_intents  # type: ignore[method-assign]
    burst = [await sim.admit() for _ in range(3 * MOST_ADOPTIONS)]
    await sim.finish(running)
    assert most == len(under_way) == MOST_ADOPTIONS
    cancelled = burst[-1]
    await sim.cancel(cancelled)
    going_on.set()
    for name in burst:
        ended = await sim.finish(name)
        assert ended["phase"] == ("Failed" if name == cancelled else "Completed")
    assert most == MOST_ADOPTIONS
    assert sim.upstream.count("submit") == len(burst), "the one that was cancelled was not"


class Dripping(FakeUpstream):
    """Its outputs never end."""

    @asynccontextmanager
    async def fetch(self, url: str) -> AsyncIterator[Download]:
        async def chunks() -> AsyncIterator[bytes]:
            while True:
                yield b"x"
                await asyncio.sleep(1)

        yield Download("video/mp4", chunks())


@in_virtual_time
async def test_slow_outputs_do_not_delay_other_providers() -> None:
    store = FakeObjects()
    outputs = Outputs(store, SIGNER, "https://media.example")
    slow = [Dripping() for _ in range(4)]
    copies = [
        asyncio.create_task(outputs.copy(one, f"slow-{n}", ["u"], read_now()))
        for one in slow
        for n in range(PLACES)
    ]
    await asyncio.sleep(10)
    well = FakeUpstream()
    async with asyncio.timeout(5):
        videos = await asyncio.gather(
            *(outputs.copy(well, f"well-{n}", ["https://p/v.mp4"], read_now()) for n in range(8))
        )
    assert len(videos) == 8
    assert not any(copy.done() for copy in copies)
    for copy in copies:
        copy.cancel()
    await asyncio.gather(*copies, return_exceptions=True)
