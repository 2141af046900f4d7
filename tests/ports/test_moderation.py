"""One set of promises of `ports.moderation`: the adapter at a real server, and the fake."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gateway_core.api.errors import UpstreamFailed
from gateway_core.api.provider import ProviderSpec
from gateway_core.providers import openai
from gateway_core.providers.moderation import CATEGORIES, complete_answer, read_call
from gateway_core.providers.moderators import explain
from gateway_core.providers.registry import build_moderation
from gateway_core.providers.upstream import (
    ModerationUpstream,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamLimited,
    UpstreamRejected,
    UpstreamTimedOut,
    UpstreamUnclear,
)
from tests.fakes.moderation import FakeModeration
from tests.servers.providers import Moderator
from tests.servers.world import wait_for

BODY = {"model": "omni-9", "input": "I will kill it"}
STATUSES = {
    UpstreamRejected: 400,
    UpstreamLimited: 429,
    UpstreamBusy: 503,
    UpstreamDenied: 401,
    UpstreamUnclear: 500,
    UpstreamTimedOut: 504,
}


@dataclass
class Rig:
    """An upstream, and what has its next call fail."""

    upstream: ModerationUpstream
    server: Moderator | None

    def fail_next(self, error: type[UpstreamError]) -> None:
        if self.server is None:
            assert isinstance(self.upstream, FakeModeration)
            self.upstream.errors.append(error("no"))
        else:
            self.server.answer_next(STATUSES[error], {"error": {"message": "no"}})

    def count(self) -> int:
        if self.server is not None:
            return len(self.server.seen)
        assert isinstance(self.upstream, FakeModeration)
        return len(self.upstream.bodies)


def declare(server: Moderator, **parts: Any) -> ProviderSpec:
    openai = {"baseUrl": server.url, **parts.pop("openai", {})}
    return ProviderSpec.model_validate({"type": "openai", "openai": openai, **parts})


@pytest.fixture(params=["server", "fake"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    if request.param == "fake":
        yield Rig(FakeModeration(), None)
        return
    with Moderator() as server:
        upstream = build_moderation(declare(server), server.token)
        yield Rig(upstream, server)
        await upstream.close()


@pytest.fixture
def server() -> Iterator[Moderator]:
    with Moderator() as server:
        yield server


@pytest.fixture
async def upstream(server: Moderator) -> AsyncIterator[ModerationUpstream]:
    upstream = build_moderation(declare(server), server.token)
    yield upstream
    await upstream.close()


async def test_text_has_one_whole_result(rig: Rig) -> None:
    answer = await rig.upstream.moderate(BODY)
    assert answer["id"].startswith("modr-")
    assert answer["model"] == "omni-9"
    (result,) = answer["results"]
    assert result["flagged"] is True
    for part in ("categories", "category_scores", "category_applied_input_types"):
        assert tuple(result[part]) == CATEGORIES
    assert result["categories"]["violence"] is True
    assert result["category_applied_input_types"]["violence"] == ["text"]


async def test_each_text_has_a_result_and_a_multimodal_input_has_one(rig: Rig) -> None:
    answer = await rig.upstream.moderate({"model": "m", "input": ["a", "kill", "c"]})
    assert [result["flagged"] for result in answer["results"]] == [False, True, False]
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    parts = [{"type": "text", "text": "a"}, image]
    assert len((await rig.upstream.moderate({"model": "m", "input": parts}))["results"]) == 1


@pytest.mark.parametrize("error", STATUSES)
async def test_provider_is_asked_once_whatever_it_answers(
    rig: Rig, error: type[UpstreamError]
) -> None:
    rig.fail_next(error)
    with pytest.raises(error) as caught:
        await rig.upstream.moderate(BODY)
    assert type(caught.value) is error
    assert rig.count() == 1
    assert (await rig.upstream.moderate(BODY))["results"]


async def test_adapter_reports_its_concurrency(rig: Rig) -> None:
    assert rig.upstream.limit == 64


async def test_closed_upstream_calls_no_provider(rig: Rig) -> None:
    await rig.upstream.moderate(BODY)
    await rig.upstream.close()
    with pytest.raises(UpstreamBusy):
        await rig.upstream.moderate(BODY)
    assert rig.count() == 1


async def test_provider_sees_its_model_the_credential_and_the_trace(server: Moderator) -> None:
    headers = [{"name": "X-Team", "value": "media"}]
    upstream = build_moderation(declare(server, openai={"headers": headers}), f" {server.token}\n")
    await upstream.moderate({**BODY, "unknown": 1}, traceparent="00-1-2-01")
    seen, body = server.seen[0]
    assert seen["authorization"] == f"Bearer {server.token}"
    assert (seen["x-team"], seen["traceparent"]) == ("media", "00-1-2-01")
    assert body == BODY, "nothing but what the contract has goes on"
    headers = [{"name": "Authorization", "value": "Key {credential}"}]
    spec = declare(
        server,
        openai={"headers": headers},
        credentialsSecretRef={"name": "judge", "key": "token"},
    )
    other = build_moderation(spec, server.token)
    await other.moderate(BODY)
    assert server.seen[1][0]["authorization"] == f"Key {server.token}"
    await other.close()


@pytest.mark.parametrize(
    ("status", "given", "expected"),
    [
        (429, "7", 7),
        (429, None, None),
        (503, None, None),
        (429, "9999", 120),
        (429, "-1", 5),
        (503, "0", 1),
    ],
)
async def test_wait_that_is_asked_for_is_kept_within_bounds(
    upstream: ModerationUpstream,
    server: Moderator,
    status: int,
    given: str | None,
    expected: float | None,
) -> None:
    server.answer_next(status, {}, {} if given is None else {"Retry-After": given})
    with pytest.raises(UpstreamBusy) as caught:
        await upstream.moderate(BODY)
    assert caught.value.retry_after == expected


async def test_unknown_upstream_model_is_a_configuration_error(
    upstream: ModerationUpstream, server: Moderator
) -> None:
    server.answer_next(404, {"error": {"message": "no model omni-9", "type": "x", "code": None}})
    with pytest.raises(UpstreamDenied) as caught:
        await upstream.moderate(BODY)
    assert "omni-9" not in caught.value.message
    assert isinstance(explain(caught.value), UpstreamFailed)


async def test_long_answer_is_read_beside_the_loop(
    upstream: ModerationUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def complete(document: Any, call: Any) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return complete_answer(document, call)

    monkeypatch.setattr(openai, "complete_answer", complete)
    for count in (128, 129):
        found = await upstream.moderate({"model": "omni-9", "input": ["a"] * count})
        assert len(found["results"]) == count
    assert threads[0] == threading.get_ident() != threads[1]


async def test_large_input_is_checked_and_written_beside_the_loop(
    upstream: ModerationUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def read(body: Any) -> Any:
        threads.append(threading.get_ident())
        return read_call(body)

    monkeypatch.setattr(openai, "read_call", read)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 300_000}}
    own = threading.get_ident()
    for given, is_large in (("a", False), ("a" * 300_000, True), ([image], True), (["a"], False)):
        assert (await upstream.moderate({"model": "omni-9", "input": given}))["results"]
        assert (threads.pop() != own) is is_large


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_refusal_says_why_and_nothing_of_the_provider(
    upstream: ModerationUpstream, server: Moderator, status: int
) -> None:
    text = f"Input too long for omni-9 at {server.url} (org-Ab12cd34) with {server.token}"
    server.answer_next(status, {"error": {"message": text, "type": "x", "code": None}})
    with pytest.raises(UpstreamRejected) as caught:
        await upstream.moderate(BODY)
    message = caught.value.message
    assert message.startswith("Input too long")
    for secret in ("omni-9", "127.0.0.1", "org-Ab12cd34", server.token):
        assert secret not in message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"results": 1}',
        b'{"results": []}',
        b'{"results": [{"flagged": "yes", "categories": {}, "category_scores": {}}]}',
        b'{"results": [{"flagged": true, "categories": {}, "category_scores": {"hate": "high"}}]}',
        b'{"results": [{"flagged": true, "categories": {"hate": 1}, "category_scores": {}}]}',
        b'{"results": [' + b" " * 100_000 + b"]}",
    ],
)
async def test_nonsense_is_unclear(
    upstream: ModerationUpstream, server: Moderator, body: bytes
) -> None:
    server.answer_next(200, body)
    with pytest.raises(UpstreamUnclear):
        await upstream.moderate(BODY)


async def test_missing_categories_are_filled_in(
    upstream: ModerationUpstream, server: Moderator
) -> None:
    result = {
        "flagged": False,
        "categories": {"hate": False, "illicit": None, "spam": True},
        "category_scores": {"hate": 1, "violence": 0.25},
        "category_applied_input_types": {"violence": ["image"]},
    }
    server.answer_next(200, {"id": "chat https://x", "results": [result]})
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    parts = [{"type": "text", "text": "a"}, image]
    answer = await upstream.moderate({"model": "m", "input": parts})
    assert answer["id"].startswith("modr-")
    (made,) = answer["results"]
    assert tuple(made["categories"]) == CATEGORIES
    assert not any(made["categories"].values())
    assert (made["category_scores"]["hate"], made["category_scores"]["illicit"]) == (1.0, 0.0)
    types = made["category_applied_input_types"]
    assert (types["violence"], types["hate"], types["illicit"]) == (["image"], ["text"], [])


async def test_silent_cut_off_and_absent_providers_are_distinguished(
    upstream: ModerationUpstream, server: Moderator
) -> None:
    spec = declare(server, openai={"requestTimeoutSeconds": 1})
    impatient = build_moderation(spec, server.token)
    server.hang_next()
    with pytest.raises(UpstreamTimedOut):
        await impatient.moderate(BODY)
    await impatient.close()
    server.cut_next()
    with pytest.raises(UpstreamUnclear) as caught:
        await upstream.moderate(BODY)
    assert type(caught.value) is UpstreamUnclear
    gone = {"type": "openai", "openai": {"baseUrl": "http://127.0.0.1:1/v1"}}
    away = build_moderation(ProviderSpec.model_validate(gone), None)
    with pytest.raises(UpstreamBusy):
        await away.moderate(BODY)
    await away.close()


async def test_no_more_calls_are_under_way_than_are_allowed(server: Moderator) -> None:
    narrow = build_moderation(declare(server, maxConcurrentRequests=2), server.token)
    server.hang_next()
    server.hang_next()
    calls = [asyncio.create_task(narrow.moderate(BODY)) for _ in range(3)]
    await wait_for(lambda: len(server.seen) == 2)
    third = asyncio.create_task(narrow.moderate(BODY))
    done, _ = await asyncio.wait([third, *calls], timeout=0.2)
    assert not done
    assert len(server.seen) == 2
    for call in calls[:2]:
        call.cancel()
    await asyncio.gather(*calls[:2], return_exceptions=True)
    assert await third
    assert await calls[2]
    await narrow.close()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"type": "openai"}, "openai: is missing"),
        ({"type": "fake"}, "serves no moderations"),
        ({"type": "openai", "openai": {"baseUrl": "http://a:0/v1"}}, "openai.baseUrl: must be"),
        ({"type": "openai", "openai": {"baseUrl": "http://169.254.169.254/"}}, "must not name"),
    ],
)
def test_unusable_provider_names_the_field(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build_moderation(ProviderSpec.model_validate(spec), None)
