"""The second worked example of the guide against a server of its style."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from ipaddress import ip_network
from typing import Any

import pytest

from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers.http import HttpUpstream
from gateway_core.providers.upstream import (
    JobInput,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamRejected,
    UpstreamUnclear,
)
from tests.servers.guide import lead_to, read_example
from tests.servers.providers import NEVER, OperationsProvider
from tests.unit.providers.conftest import INPUT

Connect = Callable[..., HttpUpstream]
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

    def make(**http: Any) -> HttpUpstream:
        example = lead_to(read_example("workshop"), server.url, "")
        spec = example["GatewayProvider"]["spec"]
        spec["http"] |= http
        policy = AddressPolicy((ip_network("127.0.0.0/8"), ip_network("::1/128")))
        made.append(HttpUpstream(ProviderSpec.model_validate(spec), server.token, policy))
        return made[-1]

    yield make
    for upstream in made:
        await upstream.close()


async def test_address_to_notify_is_sent(server: OperationsProvider, dial: Connect) -> None:
    await dial().submit(JobInput("r", "m", INPUT, notify_url="https://in.example/n"))
    assert server.journal[0].notify == "https://in.example/n"


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
    lookup = read_example("workshop")["GatewayProvider"]["spec"]["http"]["lookup"]
    now = dial(lookup=lookup)
    late = dial(lookup={**lookup, "visibleAfterSeconds": 70})
    assert late.submit_seconds - now.submit_seconds == 60


@pytest.mark.parametrize("text", ['{"operations": {"name": "a"}}', '{"operations": 5}', "[", "{"])
async def test_list_of_another_shape_tells_nothing(
    server: OperationsProvider, dial: Connect, text: str
) -> None:
    server.misbehave("lookup", "nonsense", detail=text)
    with pytest.raises(UpstreamUnclear):
        await dial().find("x")


@pytest.mark.parametrize("call", ["submit", "poll", "result", "lookup", "cancel"])
async def test_redirect_of_a_call_is_not_followed(
    server: OperationsProvider, dial: Connect, call: str
) -> None:
    upstream = dial()
    name = "" if call == "submit" else await upstream.submit(JOB)
    server.finish(JOB.reference)
    server.misbehave(call, "redirect", detail="/v3/operations?filter=labels.ref:x")
    before = server.calls["lookup"]
    with pytest.raises(UpstreamUnclear):
        await _ask(upstream, call, name)
    assert server.calls["lookup"] - before == (call == "lookup")


@pytest.mark.parametrize("call", ["submit", "poll", "result", "lookup"])
async def test_answer_is_read_up_to_its_bound(
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
