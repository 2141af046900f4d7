"""What every adapter of `ports.upstream.Upstream` promises, whoever wrote it.

Used by `test_upstreams.py` here. The author of another adapter makes a `Rig` of his provider, or of
a fake of it, and runs `test_upstreams.py`'s one test with it:

    @pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
    async def test_adapter_keeps(promise, rig):
        await promise(rig)
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest

from gateway_core.providers.upstream import (
    JobInput,
    JobState,
    SubmissionGuarantee,
    Upstream,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)

INPUT: dict[str, Any] = {
    "prompt": "A fox",
    "reference_image_urls": ["https://a.example/1.png"],
    "aspect_ratio": "16:9",
    "audio": False,
    "duration_seconds": 5,
    "output_resolution": "720p",
}


class Rig(Protocol):
    """An adapter that is started, and a hand on its provider.

    Jobs run until `end` is called; `upstream_model` is a model that the provider has.
    """

    upstream: Upstream
    upstream_model: str

    def end(self, reference: str, state: JobState) -> None:
        """Ends the job of a reference."""
        ...

    def fail_next(self, error: type[UpstreamError], *, made: bool = False) -> None:
        """Has the next submission come to an error; `made` is whether the job is made first."""
        ...

    def count_jobs(self, reference: str) -> int:
        """How many jobs were made under a reference."""
        ...


def make_job(rig: Rig, reference: str) -> JobInput:
    return JobInput(reference, rig.upstream_model, INPUT)


async def a_job_runs_until_it_has_succeeded(rig: Rig) -> None:
    name = await rig.upstream.submit(make_job(rig, "ref-1"))
    assert 0 < len(name) <= 512
    assert (await rig.upstream.poll(name)).state is JobState.RUNNING
    rig.end("ref-1", JobState.SUCCEEDED)
    report = await rig.upstream.poll(name)
    assert report.state is JobState.SUCCEEDED
    assert report.outputs
    async with rig.upstream.fetch(report.outputs[0]) as download:
        assert download.content_type
        assert b"".join([chunk async for chunk in download.chunks])


async def an_output_is_there_for_whoever_reads_it_again(rig: Rig) -> None:
    name = await rig.upstream.submit(make_job(rig, "ref-1"))
    rig.end("ref-1", JobState.SUCCEEDED)
    report = await rig.upstream.poll(name)
    read = []
    for _ in range(2):
        async with rig.upstream.fetch(report.outputs[0]) as download:
            read.append(b"".join([chunk async for chunk in download.chunks]))
    assert read[0] == read[1]


async def a_reader_may_leave_early(rig: Rig) -> None:
    name = await rig.upstream.submit(make_job(rig, "ref-1"))
    rig.end("ref-1", JobState.SUCCEEDED)
    report = await rig.upstream.poll(name)
    async with rig.upstream.fetch(report.outputs[0]):
        pass
    assert (await rig.upstream.poll(name)).state is JobState.SUCCEEDED


async def a_job_that_fails_says_so(rig: Rig) -> None:
    name = await rig.upstream.submit(make_job(rig, "ref-1"))
    rig.end("ref-1", JobState.FAILED)
    assert (await rig.upstream.poll(name)).state is JobState.FAILED


async def a_job_that_nobody_knows_is_gone(rig: Rig) -> None:
    name = await rig.upstream.submit(make_job(rig, "ref-1"))
    with pytest.raises(UpstreamGone):
        await rig.upstream.poll(name[:-2] + "zz")


async def a_refusal_has_its_error_and_no_job(rig: Rig) -> None:
    for error in (UpstreamRejected, UpstreamBusy, UpstreamDenied):
        rig.fail_next(error)
        with pytest.raises(error) as caught:
            await rig.upstream.submit(make_job(rig, "ref-1"))
        assert caught.value.message
        assert rig.count_jobs("ref-1") == 0


async def an_answer_that_is_lost_leaves_the_outcome_open(rig: Rig) -> None:
    for made in (False, True):
        rig.fail_next(UpstreamUnclear, made=made)
        with pytest.raises(UpstreamUnclear):
            await rig.upstream.submit(make_job(rig, f"ref-{made}"))
        assert rig.count_jobs(f"ref-{made}") == made, "the adapter repeats nothing by itself"


async def a_job_is_found_by_its_reference_and_no_other(rig: Rig) -> None:
    if not rig.upstream.can_find:
        pytest.skip("there is no look-up")
    rig.fail_next(UpstreamUnclear, made=True)
    with pytest.raises(UpstreamUnclear):
        await rig.upstream.submit(make_job(rig, "ref-12"))
    assert await rig.upstream.find("ref-1") is None
    found = await rig.upstream.find("ref-12")
    assert found is not None
    assert (await rig.upstream.poll(found)).state is JobState.RUNNING


async def a_key_makes_one_job_however_often_it_is_sent(rig: Rig) -> None:
    if rig.upstream.guarantee is not SubmissionGuarantee.IDEMPOTENCY_KEY:
        pytest.skip("there are no keys")
    rig.fail_next(UpstreamUnclear, made=True)
    with pytest.raises(UpstreamUnclear):
        await rig.upstream.submit(make_job(rig, "ref-1"))
    names = [await rig.upstream.submit(make_job(rig, "ref-1")) for _ in range(2)]
    assert names[0] == names[1]
    assert rig.count_jobs("ref-1") == 1


async def a_job_is_stopped_however_often_one_asks(rig: Rig) -> None:
    if not rig.upstream.can_cancel:
        pytest.skip("jobs cannot be stopped")
    name = await rig.upstream.submit(make_job(rig, "ref-1"))
    for _ in range(2):
        await rig.upstream.cancel(name)
    await rig.upstream.cancel(name[:-2] + "zz")
    assert (await rig.upstream.poll(name)).state in (JobState.CANCELLED, JobState.FAILED)


async def many_calls_at_once_do_not_mix(rig: Rig) -> None:
    jobs = [make_job(rig, f"ref-{number:02}") for number in range(20)]
    names = await asyncio.gather(*(rig.upstream.submit(job) for job in jobs))
    assert len(set(names)) == 20
    for job in jobs[::2]:
        rig.end(job.reference, JobState.SUCCEEDED)
    reports = await asyncio.gather(*(rig.upstream.poll(name) for name in names))
    states = [report.state for report in reports]
    assert states == [JobState.SUCCEEDED, JobState.RUNNING] * 10


async def nothing_is_done_after_the_close(rig: Rig) -> None:
    await rig.upstream.close()
    with pytest.raises(UpstreamBusy):
        await rig.upstream.submit(make_job(rig, "ref-1"))
    assert rig.count_jobs("ref-1") == 0


PROMISES: list[Callable[[Rig], Awaitable[None]]] = [
    a_job_runs_until_it_has_succeeded,
    an_output_is_there_for_whoever_reads_it_again,
    a_reader_may_leave_early,
    a_job_that_fails_says_so,
    a_job_that_nobody_knows_is_gone,
    a_refusal_has_its_error_and_no_job,
    an_answer_that_is_lost_leaves_the_outcome_open,
    a_job_is_found_by_its_reference_and_no_other,
    a_key_makes_one_job_however_often_it_is_sent,
    a_job_is_stopped_however_often_one_asks,
    many_calls_at_once_do_not_mix,
    nothing_is_done_after_the_close,
]
