"""Asking after a job, finding one and stopping it."""

import json
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway_core.providers.http import HttpUpstream
from gateway_core.providers.upstream import (
    JobReport,
    JobState,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamUnclear,
)
from tests.unit.providers.conftest import Connect

QUESTION_ERRORS = [
    (404, UpstreamGone),
    (410, UpstreamGone),
    (401, UpstreamDenied),
    (402, UpstreamDenied),
    (403, UpstreamDenied),
    (429, UpstreamBusy),
    (503, UpstreamBusy),
    (302, UpstreamUnclear),
    (400, UpstreamUnclear),
    (408, UpstreamUnclear),
    (500, UpstreamUnclear),
    (502, UpstreamUnclear),
]


async def test_poll_asks_as_declared(provider: Any, upstream: HttpUpstream) -> None:
    provider.answers({"job": {"state": "queued"}})
    assert await upstream.poll("a/b?c") == JobReport(JobState.RUNNING)
    (seen,) = provider.seen
    assert (seen.method, seen.target, seen.body) == ("GET", "/v1/jobs/a%2Fb%3Fc", b"")
    assert "idempotency-key" not in seen.headers


@pytest.mark.parametrize("word", ["queued", "brand-new-word", "DONE", "", 17, True])
async def test_unknown_state_word_means_running(
    provider: Any, upstream: HttpUpstream, word: Any
) -> None:
    provider.answers({"job": {"state": word}})
    assert (await upstream.poll("j")).state is JobState.RUNNING


async def test_success_has_outputs_and_seconds(provider: Any, upstream: HttpUpstream) -> None:
    urls = ["https://a.example/1.mp4?sig=%2F", "http://b.example/2.mp4"]
    outputs = [{"url": url} for url in urls]
    provider.answers({"job": {"state": "done", "outputs": outputs, "seconds": 5}})
    assert await upstream.poll("j") == JobReport(JobState.SUCCEEDED, tuple(urls), 5.0)


async def test_single_output_may_be_a_plain_url(provider: Any, connect: Connect) -> None:
    provider.answers({"job": {"state": "done", "url": "https://a.example/1.mp4"}})
    report = await connect({"http.poll.outputs": "job.url"}).poll("j")
    assert report.outputs == ("https://a.example/1.mp4",)


@pytest.mark.parametrize(
    "outputs",
    [
        None,
        [],
        {},
        [{"url": None}],
        [{"url": 5}],
        [{"url": ""}],
        [{"url": "/relative.mp4"}],
        [{"url": "ftp://a.example/1.mp4"}],
        [{"url": "file:///etc/passwd"}],
        [{"url": "javascript:alert(1)"}],
        [{"url": "https://a.example/ 1.mp4"}],
        [{"url": "https://a.example/\r\nX: y"}],
        [{"url": "https://a.example\\@b.example/"}],
        [{"url": "https://a.example/" + "x" * 2048}],
        [{"url": "https://a.example/1.mp4"}] * 17,
        [{"url": "https://a.example/1.mp4"}, {"url": "x"}],
    ],
    ids=range(16),
)
async def test_success_without_usable_outputs_is_unclear(
    provider: Any, upstream: HttpUpstream, outputs: Any
) -> None:
    provider.answers({"job": {"state": "done", "outputs": outputs}})
    with pytest.raises(UpstreamUnclear, match="contradictory"):
        await upstream.poll("j")


@pytest.mark.parametrize("seconds", [None, "5", True, -1, 1e9, [5]])
async def test_seconds_that_cannot_be_are_none(
    provider: Any, upstream: HttpUpstream, seconds: Any
) -> None:
    outputs = [{"url": "https://a.example/1.mp4"}]
    provider.answers({"job": {"state": "done", "outputs": outputs, "seconds": seconds}})
    assert (await upstream.poll("j")).seconds is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"message": "Image 2 shows a person"}, "Image 2 shows a person"),
        ({"message": "job_77x at https://x.example failed"}, "[removed] at [removed] failed"),
        ({"message": ""}, "The provider could not make the video."),
        (None, "The provider could not make the video."),
        ("boom", "The provider could not make the video."),
    ],
)
async def test_failure_has_a_clean_message(
    provider: Any, upstream: HttpUpstream, error: Any, message: str
) -> None:
    provider.answers({"job": {"state": "error", "error": error}})
    assert await upstream.poll("job_77x") == JobReport(JobState.FAILED, message=message)


async def test_job_may_be_cancelled(provider: Any, upstream: HttpUpstream) -> None:
    provider.answers({"job": {"state": "cancelled"}})
    assert (await upstream.poll("j")).state is JobState.CANCELLED


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[]", b"5", b'{"job": {"state": []}}'])
async def test_nonsense_is_unclear(provider: Any, upstream: HttpUpstream, body: bytes) -> None:
    provider.answers(web.Response(body=body))
    with pytest.raises(UpstreamUnclear):
        await upstream.poll("j")


@pytest.mark.parametrize(("status", "error"), QUESTION_ERRORS)
async def test_each_status_of_a_poll(
    provider: Any, upstream: HttpUpstream, status: int, error: type[UpstreamError]
) -> None:
    provider.answers(web.Response(status=status, headers={"Retry-After": "7"}))
    with pytest.raises(UpstreamError) as caught:
        await upstream.poll("j")
    assert type(caught.value) is error
    if error is UpstreamBusy:
        assert caught.value.retry_after == 7


async def test_id_that_cannot_stand_in_the_path_is_unclear(
    provider: Any, upstream: HttpUpstream
) -> None:
    for job_id in ("", "..", "\ud800"):
        with pytest.raises(UpstreamUnclear):
            await upstream.poll(job_id)
    assert provider.seen == []


async def test_poll_may_post_the_id_in_its_body(provider: Any, connect: Connect) -> None:
    changes = {"method": "POST", "path": "/query", "body": "{ids: [jobId]}"}
    provider.answers({"job": {"state": "queued"}})
    await connect({f"http.poll.{name}": value for name, value in changes.items()}).poll("a")
    (seen,) = provider.seen
    assert (seen.method, seen.target, seen.body) == ("POST", "/query", b'{"ids":["a"]}')


async def test_outputs_may_come_from_a_second_call(provider: Any, connect: Connect) -> None:
    changes = {
        "http.poll.resultId": "job.file",
        "http.poll.outputs": "file.url",
        "http.result": {"path": "/files?id={resultId}&job={jobId}"},
    }
    provider.answers(
        {"job": {"state": "done", "file": 42}}, {"file": {"url": "https://a.example/1.mp4"}}
    )
    upstream = connect(changes)
    assert (await upstream.poll("j")).outputs == ("https://a.example/1.mp4",)
    assert [seen.target for seen in provider.seen] == ["/v1/jobs/j", "/files?id=42&job=j"]
    provider.answers({"job": {"state": "done"}})
    with pytest.raises(UpstreamUnclear):
        await upstream.poll("j")


@pytest.mark.parametrize("status", [200, 422, 503])
async def test_result_may_say_that_the_job_failed(
    provider: Any, connect: Connect, status: int
) -> None:
    result = {"path": "/files/{jobId}", "errorMessage": "detail[0].msg"}
    upstream = connect({"http.result": result})
    ended = {"job": {"state": "done"}}
    failed = web.json_response({"detail": [{"msg": "It is dark."}]}, status=status)
    provider.answers(ended, failed)
    report = await upstream.poll("j")
    assert report == JobReport(JobState.FAILED, message="It is dark.")
    # without such a text the status decides
    for answer in (web.json_response({"detail": "wait"}, status=429), web.Response(status=503)):
        provider.answers(ended, answer)
        with pytest.raises(UpstreamBusy):
            await upstream.poll("j")


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    answer=st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["job", "state", "outputs", "url", "error"]), inner)
        ),
    ),
    word=st.sampled_from(["done", "error", "cancelled", "queued"]),
)
async def test_poll_of_any_answer_reports_or_raises_an_upstream_error(
    provider: Any, upstream: HttpUpstream, answer: Any, word: str
) -> None:
    if isinstance(answer, dict) and isinstance(answer.get("job"), dict):
        answer["job"]["state"] = word
    body = json.dumps(answer, ensure_ascii=True).encode()
    provider.answers(web.Response(body=body))
    try:
        report = await upstream.poll("j")
    except UpstreamError:
        return
    assert bool(report.outputs) is (report.state is JobState.SUCCEEDED)


async def test_cancel_asks_as_declared(provider: Any, upstream: HttpUpstream) -> None:
    provider.answers(204)
    await upstream.cancel("j")
    assert (provider.seen[0].method, provider.seen[0].target) == ("POST", "/v1/jobs/j/cancel")


@pytest.mark.parametrize("status", [200, 202, 204, 404, 409, 410])
async def test_job_that_is_over_or_unknown_needs_no_cancelling(
    provider: Any, upstream: HttpUpstream, status: int
) -> None:
    provider.answers(status)
    await upstream.cancel("j")
    assert len(provider.seen) == 1


@pytest.mark.parametrize(
    ("status", "error"), [e for e in QUESTION_ERRORS if e[0] not in (404, 410)]
)
async def test_each_status_of_a_cancellation(
    provider: Any, upstream: HttpUpstream, status: int, error: type[UpstreamError]
) -> None:
    provider.answers(status)
    with pytest.raises(error):
        await upstream.cancel("j")


async def test_job_is_found_by_its_reference(provider: Any, upstream: HttpUpstream) -> None:
    provider.answers({"jobs": [{"id": "job_9"}]})
    assert await upstream.find("uid&1") == "job_9"
    assert provider.seen[0].target == "/v1/jobs?ref=uid%261"


@pytest.mark.parametrize("answer", [{"jobs": []}, {"jobs": [{"id": None}]}, 404])
async def test_lookup_without_a_job_is_none(
    provider: Any, upstream: HttpUpstream, answer: Any
) -> None:
    provider.answers(answer)
    assert await upstream.find("uid") is None


@pytest.mark.parametrize("answer", [200, 500, 302, {"jobs": [{"id": []}]}])
async def test_lookup_that_tells_nothing_is_unclear(
    provider: Any, upstream: HttpUpstream, answer: Any
) -> None:
    provider.answers(answer)
    with pytest.raises(UpstreamUnclear):
        await upstream.find("uid")


async def test_undeclared_lookup_and_cancel_are_unclear(provider: Any, connect: Connect) -> None:
    upstream = connect({"http.lookup": None, "http.cancel": None})
    with pytest.raises(UpstreamUnclear):
        await upstream.find("uid")
    with pytest.raises(UpstreamUnclear):
        await upstream.cancel("j")
    assert provider.seen == []
