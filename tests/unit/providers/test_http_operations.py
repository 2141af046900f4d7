"""The second worked example of the guide against a server of its style."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from ipaddress import ip_network
from typing import Any

import pytest

from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers.http import HttpUpstream
from gateway_core.providers.upstream import (
    JobInput,
    JobState,
    OutputRejected,
    SubmissionGuarantee,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)
from tests.servers.guide import lead_to, read_example
from tests.servers.providers import NEVER, VIDEO, OperationsProvider

Connect = Callable[..., HttpUpstream]
INPUT = {
    "prompt": "A fox",
    "reference_image_urls": ["https://a.example/1.png"],
    "aspect_ratio": "16:9",
    "audio": False,
    "duration_seconds": 5,
    "output_resolution": "720p",
}
JOB = JobInput("9f0e-uid", "film/wide-2", INPUT)
REFUSALS: list[tuple[tuple[Any, ...], type[UpstreamError]]] = [
    (("INVALID_ARGUMENT", "No."), UpstreamRejected),
    (("RATE_EXCEEDED", "No.", 7000), UpstreamBusy),
    (("OVERLOADED", "No."), UpstreamBusy),
    (("NO_CREDIT", "No."), UpstreamDenied),
    (("INTERNAL", "No."), UpstreamUnclear),
    ((5, "No."), UpstreamUnclear),
]


@pytest.fixture
def server() -> Iterator[OperationsProvider]:
    with OperationsProvider(seconds=NEVER) as running:
        yield running


@pytest.fixture
async def dial(server: OperationsProvider) -> AsyncIterator[Connect]:
    """Makes adapters; changes go into `spec.http`."""
    made: list[HttpUpstream] = []

    def make(*, token: str | None = None, allowed: bool = True, **http: Any) -> HttpUpstream:
        example = lead_to(read_example("workshop"), server.url, "")
        spec = example["GatewayProvider"]["spec"]
        spec["http"] |= http
        networks = [ip_network("127.0.0.0/8"), ip_network("::1/128")] if allowed else []
        policy = AddressPolicy(tuple(networks))
        parsed = ProviderSpec.model_validate(spec)
        made.append(HttpUpstream(parsed, token or server.token, policy))
        return made[-1]

    yield make
    for upstream in made:
        await upstream.close()


async def test_job_from_its_start_to_its_output(server: OperationsProvider, dial: Connect) -> None:
    upstream = dial()
    assert upstream.guarantee is SubmissionGuarantee.LOOKUP
    name = await upstream.submit(JOB)
    (job,) = server.journal
    assert (name, job.engine, job.reference) == (job.name, "film/wide-2", "9f0e-uid")
    assert (job.body["length_ms"], job.body["silent"], job.notify) == (5000, True, None)
    assert (await upstream.poll(name)).state is JobState.RUNNING
    server.finish(job.reference)
    report = await upstream.poll(name)
    assert (report.state, report.seconds) == (JobState.SUCCEEDED, 5)
    async with upstream.fetch(report.outputs[0]) as download:
        assert download.content_type == "video/mp4"
        assert b"".join([chunk async for chunk in download.chunks]) == VIDEO


async def test_output_on_another_host_keeps_to_the_address_policy(
    server: OperationsProvider, dial: Connect
) -> None:
    upstream = dial(allowed=False)
    name = await upstream.submit(JOB)
    server.finish(JOB.reference)
    report = await upstream.poll(name)
    with pytest.raises(OutputRejected):
        async with upstream.fetch(report.outputs[0]):
            pass


async def test_address_to_notify_is_sent(server: OperationsProvider, dial: Connect) -> None:
    await dial().submit(JobInput("r", "m", INPUT, notify_url="https://in.example/n"))
    assert server.journal[0].notify == "https://in.example/n"


@pytest.mark.parametrize(("outcome", "state"), [("Failure", "failed"), ("Aborted", "cancelled")])
async def test_ends_that_make_nothing(
    server: OperationsProvider, dial: Connect, outcome: str, state: str
) -> None:
    upstream = dial()
    name = await upstream.submit(JOB)
    server.finish(JOB.reference, outcome)
    report = await upstream.poll(name)
    assert report.state is JobState(state)
    if outcome == "Failure":
        assert report.message is not None
        assert report.message.startswith("A still is too dark")
        assert server.token not in report.message
        assert name not in report.message


@pytest.mark.parametrize(("detail", "error"), REFUSALS)
async def test_error_in_the_body_of_a_200_means_what_is_declared(
    server: OperationsProvider, dial: Connect, detail: tuple[Any, ...], error: type[UpstreamError]
) -> None:
    upstream = dial()
    server.misbehave("submit", "error", detail=detail)
    with pytest.raises(error) as caught:
        await upstream.submit(JOB)
    assert type(caught.value) is error
    assert caught.value.retry_after == {"RATE_EXCEEDED": 7, "OVERLOADED": 5}.get(detail[0])


@pytest.mark.parametrize(("detail", "error"), REFUSALS)
async def test_question_that_is_refused_is_asked_again(
    server: OperationsProvider, dial: Connect, detail: tuple[Any, ...], error: type[UpstreamError]
) -> None:
    upstream = dial()
    name = await upstream.submit(JOB)
    questions: dict[str, Callable[[], Awaitable[Any]]] = {
        "poll": lambda: upstream.poll(name),
        "lookup": lambda: upstream.find(JOB.reference),
        "cancel": lambda: upstream.cancel(name),
    }
    for call, ask in questions.items():
        server.misbehave(call, "error", detail=detail)
        with pytest.raises(UpstreamError) as caught:
            await ask()
        assert type(caught.value) is (UpstreamUnclear if error is UpstreamRejected else error)


async def test_refused_token_appears_in_no_error(server: OperationsProvider, dial: Connect) -> None:
    with pytest.raises(UpstreamDenied) as caught:
        await dial(token="wrong-Token-4711").submit(JOB)
    assert "4711" not in str(caught.value)


async def test_input_error_is_reported_without_secrets(
    server: OperationsProvider, dial: Connect
) -> None:
    text = f"A still is too dark, see https://x.example/?t={server.token} ({server.token})"
    server.misbehave("submit", "error", detail=("CONTENT_REFUSED", text))
    with pytest.raises(UpstreamRejected) as caught:
        await dial().submit(JOB)
    assert str(caught.value).startswith("A still is too dark")
    assert server.token not in str(caught.value)
    assert "x.example" not in str(caught.value)


async def test_status_still_means_what_it_says(server: OperationsProvider, dial: Connect) -> None:
    upstream = dial()
    cases: list[tuple[int, str | None, type[UpstreamError], float | None]] = [
        (429, "3", UpstreamBusy, 3),
        (503, None, UpstreamUnclear, None),
        (502, None, UpstreamUnclear, None),
    ]
    for status, wait, error, seconds in cases:
        server.misbehave("submit", "status", detail=(status, wait))
        with pytest.raises(error) as caught:
            await upstream.submit(JOB)
        assert caught.value.retry_after == seconds
    assert server.journal == []


@pytest.mark.parametrize(
    "text", ["", "<html>", "[]", '{"ok": true}', '{"operation": {"name": 5.5}}']
)
async def test_answer_of_nonsense_leaves_the_outcome_open(
    server: OperationsProvider, dial: Connect, text: str
) -> None:
    server.misbehave("submit", "nonsense", detail=text, after=True)
    upstream = dial()
    with pytest.raises(UpstreamUnclear):
        await upstream.submit(JOB)
    assert await upstream.find(JOB.reference) == server.journal[0].name


async def test_cut_connection_leaves_the_outcome_open(
    server: OperationsProvider, dial: Connect
) -> None:
    server.misbehave("submit", "cut", after=True)
    with pytest.raises(UpstreamUnclear):
        await dial().submit(JOB)
    assert len(server.journal) == 1, "the client has not repeated it by itself"


async def test_lookup_takes_no_job_of_another_reference(
    server: OperationsProvider, dial: Connect
) -> None:
    upstream = dial()
    assert await upstream.find("9f0e") is None
    longer = await upstream.submit(JOB)
    assert await upstream.find("9f0e") is None, "the filter finds prefixes"
    server.filters = False
    assert await upstream.find("another") is None
    assert await upstream.find(JOB.reference) == longer


async def test_lookup_that_answers_about_another_job_is_no_answer(
    server: OperationsProvider, dial: Connect
) -> None:
    lookup = {
        "path": "/v3/operations?filter=labels.ref:{reference}",
        "jobId": "operations[0].name",
        "reference": "operations[0].labels.ref",
    }
    upstream = dial(lookup=lookup)
    assert await upstream.find("x") is None
    name = await upstream.submit(JOB)
    assert await upstream.find(JOB.reference) == name
    server.filters = False
    with pytest.raises(UpstreamUnclear):
        await upstream.find("x")


async def test_lookup_waits_until_a_job_must_be_visible(dial: Connect) -> None:
    now = dial(lookup=read_example("workshop")["GatewayProvider"]["spec"]["http"]["lookup"])
    late = dial(lookup={**_lookup(), "visibleAfterSeconds": 70})
    assert late.submit_seconds - now.submit_seconds == 60


def _lookup() -> dict[str, Any]:
    found: dict[str, Any] = read_example("workshop")["GatewayProvider"]["spec"]["http"]["lookup"]
    return found


@pytest.mark.parametrize("text", ['{"operations": {"name": "a"}}', '{"operations": 5}', "[", "{"])
async def test_list_of_another_shape_tells_nothing(
    server: OperationsProvider, dial: Connect, text: str
) -> None:
    server.misbehave("lookup", "nonsense", detail=text)
    with pytest.raises(UpstreamUnclear):
        await dial().find("x")


async def test_job_is_stopped_once_or_was_over(server: OperationsProvider, dial: Connect) -> None:
    upstream = dial()
    name = await upstream.submit(JOB)
    await asyncio.gather(upstream.cancel(name), upstream.cancel(name))
    await upstream.cancel("engines/a/operations/none")
    assert (await upstream.poll(name)).state is JobState.CANCELLED


async def test_unknown_job_is_gone(dial: Connect) -> None:
    with pytest.raises(UpstreamGone):
        await dial().poll("engines/a/operations/none")


@pytest.mark.parametrize("name", ["../../admin", "a//b", ".", "a/../b", ""])
async def test_name_leads_nowhere_else(
    server: OperationsProvider, dial: Connect, name: str
) -> None:
    with pytest.raises(UpstreamUnclear):
        await dial().poll(name)
    assert not server.calls


@pytest.mark.parametrize("call", ["submit", "poll", "result", "lookup", "cancel"])
@pytest.mark.parametrize(
    "to", ["http://169.254.169.254/latest", "/v3/operations?filter=labels.ref:x"]
)
async def test_no_call_is_led_elsewhere(
    server: OperationsProvider, dial: Connect, call: str, to: str
) -> None:
    upstream = dial()
    name = "" if call == "submit" else await upstream.submit(JOB)
    server.finish(JOB.reference)
    server.misbehave(call, "redirect", detail=to)
    before = server.calls["lookup"]
    with pytest.raises(UpstreamUnclear):
        await _ask(upstream, call, name)
    assert server.calls["lookup"] - before == (call == "lookup")


@pytest.mark.parametrize("call", ["submit", "poll", "result", "lookup"])
async def test_no_answer_is_read_beyond_its_bound(
    server: OperationsProvider, dial: Connect, call: str
) -> None:
    upstream = dial()
    name = "" if call == "submit" else await upstream.submit(JOB)
    server.finish(JOB.reference)
    padding = " " * (2 * 1024 * 1024)
    server.misbehave(call, "nonsense", detail=f'{{"ok": true,{padding}"operations": []}}')
    with pytest.raises(UpstreamUnclear):
        await _ask(upstream, call, name)


async def _ask(upstream: HttpUpstream, call: str, name: str) -> None:
    if call == "submit":
        await upstream.submit(JOB)
    elif call == "lookup":
        await upstream.find(JOB.reference)
    elif call == "cancel":
        await upstream.cancel(name)
    else:
        await upstream.poll(name)
