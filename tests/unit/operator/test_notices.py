"""A provider's notice makes the poll due: early, late, repeated or forged, it does no harm."""

import asyncio

import pytest

from gateway_core.providers.notices import Notice
from gateway_core.providers.upstream import JobReport, JobState, UpstreamBusy, UpstreamUnclear
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.harness import Simulation

SLOW = (60.0, 60.0)


async def boot(upstream: FakeUpstream) -> Simulation:
    """A simulation whose operator tells providers where to call."""
    sim = Simulation(upstream)
    sim.notify_url = "https://api.example/notices/"
    await sim.boot()
    return sim


def notify(sim: Simulation, name: str, uid: str = "") -> None:
    sim.running.controller.take_notice(Notice(name, uid or sim.uid(name)))


async def wait_running(sim: Simulation, name: str) -> None:
    await sim.wait(lambda: sim.status(name).get("phase") == "Running")


@in_virtual_time
async def test_notice_makes_a_poll_due() -> None:
    sim = await boot(FakeUpstream(seconds=5, poll_interval=SLOW))
    name = await sim.admit()
    await wait_running(sim, name)
    await asyncio.sleep(6)
    assert sim.upstream.count("poll") == 0
    notify(sim, name)
    await sim.finish(name, seconds=3)
    assert sim.upstream.count("poll") == 1


@in_virtual_time
async def test_notify_url_is_sent_only_where_push_is_on() -> None:
    seen: list[str | None] = []

    class Listening(FakeUpstream):
        async def submit(self, job):  # type: ignore[no-untyped-def]
            seen.append(job.notify_url)
            return await super().submit(job)

    sim = await boot(Listening())
    name = await sim.admit()
    await sim.finish(name)
    sim.notify_url = None
    await sim.finish(await sim.admit())
    assert seen == [f"https://api.example/notices/{name}", None]


@in_virtual_time
async def test_notice_before_the_jobs_id_is_recorded_counts() -> None:
    sim = await boot(FakeUpstream(seconds=0.1, poll_interval=SLOW, latency=2.0))
    name = await sim.admit()
    await sim.wait(lambda: sim.status(name).get("phase") == "Submitting")
    notify(sim, name)
    await wait_running(sim, name)
    await sim.finish(name, seconds=10)
    assert sim.upstream.count("submit") == 1


@in_virtual_time
async def test_notice_during_a_poll_that_was_sent_too_early_counts() -> None:
    sim = await boot(FakeUpstream(seconds=600, poll_interval=SLOW, latency=4.0))
    sim.upstream.polls.append(JobReport(JobState.RUNNING))
    name = await sim.admit()
    await wait_running(sim, name)
    notify(sim, name)
    await asyncio.sleep(3)
    sim.upstream.polls.append(JobReport(JobState.SUCCEEDED, sim.upstream.outputs))
    notify(sim, name)
    await sim.finish(name, seconds=20)
    assert sim.upstream.count("poll") == 2


@in_virtual_time
async def test_flood_of_notices_causes_few_polls() -> None:
    sim = await boot(FakeUpstream(seconds=300, poll_interval=SLOW))
    name = await sim.admit()
    await wait_running(sim, name)
    for _ in range(1200):
        notify(sim, name)
        await asyncio.sleep(0.05)
    assert sim.upstream.count("poll") <= 11, "1, 2, 4, 8 seconds apart, then 10"


@in_virtual_time
async def test_flood_of_notices_respects_retry_after() -> None:
    sim = await boot(FakeUpstream(seconds=300, poll_interval=SLOW))
    sim.upstream.polls.append(UpstreamBusy("busy", retry_after=45.0))
    sim.upstream.polls.append(JobReport(JobState.RUNNING, retry_after=50.0))
    name = await sim.admit()
    await wait_running(sim, name)
    for _ in range(1500):
        notify(sim, name)
        await asyncio.sleep(0.1)
    first, second, third = sim.upstream.times("poll")[:3]
    assert second - first >= 45
    assert third - second >= 50


@in_virtual_time
async def test_notices_of_other_uids_unknown_and_ended_tasks_do_nothing() -> None:
    sim = await boot(FakeUpstream(seconds=5))
    name = await sim.admit()
    await wait_running(sim, name)
    before = sim.upstream.count("poll")
    notify(sim, name, "00000000-0000-4000-8000-000000000000")
    notify(sim, "task-nobody", "00000000-0000-4000-8000-000000000000")
    await asyncio.sleep(0.1)
    assert sim.upstream.count("poll") == before
    await sim.finish(name)
    after = sim.upstream.count("poll")
    notify(sim, name)
    await asyncio.sleep(30)
    assert sim.upstream.count("poll") == after
    assert not sim.operator or len(sim.operator.cache) == 0


@pytest.mark.parametrize(
    ("push", "declared", "most"), [(True, 60, 4), (False, 60, 60), (True, 0, 60)]
)
@in_virtual_time
async def test_polls_go_on_more_slowly_only_where_that_is_declared(
    push: bool, declared: int, most: int
) -> None:
    upstream = FakeUpstream(seconds=150, poll_interval=(2.0, 10.0))
    upstream.notified_interval = float(declared) or None
    sim = await boot(upstream)
    sim.notify_url = sim.notify_url if push else None
    await sim.finish(await sim.admit(), seconds=400)
    polls = upstream.count("poll")
    assert polls <= most
    assert most == 4 or polls > 15


@in_virtual_time
async def test_poll_that_fails_after_a_notice_is_made_again_soon() -> None:
    upstream = FakeUpstream(seconds=20, poll_interval=(2.0, 10.0))
    upstream.notified_interval = 600.0
    sim = await boot(upstream)
    name = await sim.admit(deadline=3600)
    await wait_running(sim, name)
    await asyncio.sleep(25)
    upstream.polls.extend([UpstreamUnclear("502"), UpstreamUnclear("502")])
    notify(sim, name)
    await sim.finish(name, seconds=15)
