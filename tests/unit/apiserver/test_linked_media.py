"""Pictures at web addresses for providers that take bytes alone."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from gateway_apiserver.surfaces.llm.linked_media import MOST_BYTES, MOST_LINKS
from tests.fakes.llm_streams import google_chunks
from tests.servers.llm_provider import Received, Reply
from tests.unit.apiserver.gateway import Answer, call
from tests.unit.apiserver.llm_gateway import LlmGateway, answer, serve, serve_each

URL = "https://pictures.example.com/cat.png?size=3"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(50)
Script = Callable[[Reply, Received], Awaitable[None]]


async def generate(reply: Reply, _: Received) -> None:
    """Answer in Google's dialect."""
    [chunk] = google_chunks("Hello")
    await reply.whole(chunk)


def show(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}]}


class GoogleGateway(LlmGateway):
    """The first provider is of Google's dialect."""

    def put_provider(
        self, provider: Any, name: str = "provider-0", *rest: Any, **more: Any
    ) -> None:
        if name != "provider-0":
            super().put_provider(provider, name, *rest, **more)
            return
        declared = {"type": "google", "google": {"baseUrl": f"{provider.url}/v1beta"}}
        self.kube.put("gatewayproviders", {"metadata": {"name": name}, "spec": declared})


async def respond(gateway: LlmGateway, **fields: Any) -> Answer:
    return await gateway.create({"model": "chat-1", **fields}, path="/v1/responses")


async def test_picture_is_fetched_once_and_sent_as_bytes() -> None:
    async with serve(generate, kind=GoogleGateway) as (gateway, provider):
        gateway.fetcher.pages[URL] = PNG
        found = await gateway.chat(**show(URL, URL))
        assert found.status == 200, found.body
        assert gateway.fetcher.fetched == [URL]
        assert gateway.fetcher.holders == ["demo"]
        [part, other] = provider.received[-1].body["contents"][0]["parts"]
        assert part == other
        assert part["inlineData"]["mimeType"] == "image/png"


async def test_addresses_in_results_of_tools_and_of_documents_are_fetched() -> None:
    async with serve(generate, kind=GoogleGateway) as (gateway, provider):
        gateway.fetcher.pages |= {URL: PNG, "http://x.example/a.pdf": b"%PDF-1.7\n"}
        shown = [
            {"type": "input_image", "image_url": URL},
            {"type": "input_file", "file_url": "http://x.example/a.pdf"},
        ]
        items = [
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": shown},
            {"role": "user", "content": shown},
        ]
        assert (await respond(gateway, input=items)).status == 200
        _, result, asked = provider.received[-1].body["contents"]
        kinds = [part["inlineData"]["mimeType"] for part in asked["parts"]]
        assert kinds == ["image/png", "application/pdf"]
        assert result["parts"][1:] == asked["parts"]


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("leads to an address that is not allowed", "not allowed"),
        (b"<html>", "no picture"),
        (bytes(MOST_BYTES + 1), "bytes"),
    ],
)
async def test_what_cannot_be_shown_is_refused_by_its_place(page: Any, reason: str) -> None:
    async with serve(generate, kind=GoogleGateway) as (gateway, provider):
        gateway.fetcher.pages[URL] = page
        found = await gateway.chat(**show(URL))
        assert found.status == 400
        error = orjson.loads(found.body)["error"]
        assert error["param"] == "messages"
        assert "messages[0].content[0].image_url" in error["message"]
        assert reason in error["message"]
        assert not provider.received
        assert await gateway.held() == 0


async def test_too_many_addresses_are_refused_before_one_is_fetched() -> None:
    async with serve(generate, kind=GoogleGateway) as (gateway, _):
        urls = [f"https://x.example/{number}.png" for number in range(MOST_LINKS + 1)]
        assert (await gateway.chat(**show(*urls))).status == 400
        assert gateway.fetcher.fetched == []


async def test_provider_that_fetches_itself_is_told_the_address() -> None:
    async with serve_each(generate, answer, kind=GoogleGateway) as (gateway, first, second):
        found = await gateway.chat(**show(URL))
        assert found.status == 200
        # the other dialect's provider has not seen it
        assert not first.received
        [part] = second.received[-1].body["messages"][0]["content"]
        assert part["image_url"]["url"] == URL
    async with serve(answer) as (gateway, _):
        await gateway.chat(**show(URL))
        assert gateway.fetcher.fetched == []


async def test_unauthenticated_call_fetches_nothing() -> None:
    async with serve(generate, kind=GoogleGateway) as (gateway, _):
        content = orjson.dumps({"model": "chat-1", **show(URL)})
        headers = [("Content-Type", "application/json")]
        found = await call(
            gateway.app, "POST", "/v1/chat/completions", headers=headers, content=content
        )
        assert found.status == 401
        assert gateway.fetcher.fetched == []
