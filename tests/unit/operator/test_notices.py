"""A provider's notice makes the poll due: early, late, repeated or forged, it does no harm."""

import asyncio

import pytest

from gateway_core.providers.notices import Notice
from gateway_core.providers.upstream import JobReport, JobState, UpstreamBusy, UpstreamUnclear
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.harness import Stage

SLOW = (60.0, 60.0)


async def boot(upstream: FakeUpstream) -> Stage:
    """A stage whose operator tells providers where to call."""
    stage = Stage(upstream)
    stage.notify_url = "https://api.example/notices/"
    await stage.boot()
    return stage


def notify(stage: Stage, name: str, uid: str = "") -> None:
    assert stage.operator is not None
    stage.operator.controller.take_notice(Notice(name, uid or stage.uid(name)))


async def wait_running(stage: Stage, name: str) -> None:
    await stage.wait(lambda: stage.status(name).get("phase") == "Running")


@in_virtual_time
async def test_a_notice_ends_a_task_while_no_poll_is_due() -> None:
    stage = await boot(FakeUpstream(seconds=5, poll_interval=SLOW))
    name = await stage.admit()
    await wait_running(stage, name)
    await asyncio.sleep(6)
    assert stage.upstream.count("poll") == 0
    notify(stage, name)
    await stage.finish(name, seconds=3)
    assert stage.upstream.count("poll") == 1


@in_virtual_time
async def test_the_provider_is_given_an_address_only_where_push_is_on() -> None:
    seen: list[str | None] = []

    class Listening(FakeUpstream):
        async def submit(self, job):  # type: ignore[no-untyped-def]
            seen.append(job.notify_url)
            return await super().submit(job)

    stage = await boot(Listening())
    name = await stage.admit()
    await stage.finish(name)
    stage.notify_url = None
    await stage.finish(await stage.admit())
    assert seen == [f"https://api.example/notices/{name}", None]


@in_virtual_time
async def test_a_notice_before_the_jobs_id_is_recorded_counts() -> None:
    stage = await boot(FakeUpstream(seconds=0.1, poll_interval=SLOW, latency=2.0))
    name = await stage.admit()
    await stage.wait(lambda: stage.status(name).get("phase") == "Submitting")
    notify(stage, name)
    await wait_running(stage, name)
    await stage.finish(name, seconds=10)
    assert stage.upstream.count("submit") == 1


@in_virtual_time
async def test_a_notice_during_a_poll_that_was_sent_too_early_counts() -> None:
    stage = await boot(FakeUpstream(seconds=600, poll_interval=SLOW, latency=4.0))
    stage.upstream.polls.append(JobReport(JobState.RUNNING))
    name = await stage.admit()
    await wait_running(stage, name)
    notify(stage, name)
    await asyncio.sleep(3)
    stage.upstream.polls.append(JobReport(JobState.SUCCEEDED, stage.upstream.outputs))
    notify(stage, name)
    await stage.finish(name, seconds=20)
    assert stage.upstream.count("poll") == 2


@in_virtual_time
async def test_a_flood_costs_the_provider_little() -> None:
    stage = await boot(FakeUpstream(seconds=300, poll_interval=SLOW))
    name = await stage.admit()
    await wait_running(stage, name)
    for _ in range(6000):
        notify(stage, name)
        await asyncio.sleep(0.01)
    assert stage.upstream.count("poll") <= 11, "1, 2, 4, 8 seconds apart, then 10"


@in_virtual_time
async def test_a_flood_does_not_shorten_what_the_provider_asks_for() -> None:
    stage = await boot(FakeUpstream(seconds=300, poll_interval=SLOW))
    stage.upstream.polls.append(UpstreamBusy("busy", retry_after=45.0))
    stage.upstream.polls.append(JobReport(JobState.RUNNING, retry_after=50.0))
    name = await stage.admit()
    await wait_running(stage, name)
    for _ in range(1500):
        notify(stage, name)
        await asyncio.sleep(0.1)
    first, second, third = stage.upstream.times("poll")[:3]
    assert second - first >= 45
    assert third - second >= 50


@in_virtual_time
async def test_notices_of_other_uids_unknown_and_ended_tasks_do_nothing() -> None:
    stage = await boot(FakeUpstream(seconds=5))
    name = await stage.admit()
    await wait_running(stage, name)
    before = stage.upstream.count("poll")
    notify(stage, name, "00000000-0000-4000-8000-000000000000")
    notify(stage, "task-nobody", "00000000-0000-4000-8000-000000000000")
    await asyncio.sleep(0.1)
    assert stage.upstream.count("poll") == before
    await stage.finish(name)
    after = stage.upstream.count("poll")
    notify(stage, name)
    await asyncio.sleep(30)
    assert stage.upstream.count("poll") == after
    assert not stage.operator or len(stage.operator.cache) == 0


@pytest.mark.parametrize(
    ("push", "declared", "most"), [(True, 60, 4), (False, 60, 60), (True, 0, 60)]
)
@in_virtual_time
async def test_polls_go_on_more_slowly_only_where_that_is_declared(
    push: bool, declared: int, most: int
) -> None:
    upstream = FakeUpstream(seconds=150, poll_interval=(2.0, 10.0))
    upstream.notified_interval = float(declared) or None
    stage = await boot(upstream)
    stage.notify_url = stage.notify_url if push else None
    await stage.finish(await stage.admit(), seconds=400)
    polls = upstream.count("poll")
    assert polls <= most
    assert most == 4 or polls > 15


@in_virtual_time
async def test_a_poll_that_fails_after_a_notice_is_made_again_soon() -> None:
    upstream = FakeUpstream(seconds=20, poll_interval=(2.0, 10.0))
    upstream.notified_interval = 600.0
    stage = await boot(upstream)
    name = await stage.admit(deadline=3600)
    await wait_running(stage, name)
    await asyncio.sleep(25)
    upstream.polls.extend([UpstreamUnclear("502"), UpstreamUnclear("502")])
    notify(stage, name)
    await stage.finish(name, seconds=15)
