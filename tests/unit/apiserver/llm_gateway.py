"""The API on fakes with language models at providers that follow a script."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway_core.billing.journal import CallRecord
from gateway_core.llm.client import Timeouts
from gateway_web.http1.exchange import EXCHANGE_KEY
from tests.servers.llm_provider import (
    LlmProvider,
    Received,
    Reply,
    make_chat_answer,
    make_chat_chunks,
)
from tests.servers.world import wait_for
from tests.unit.apiserver.gateway import Answer, FakeExchange, Gateway

CHAT = "/v1/chat/completions"
PRICE = {"inputPerMillionMicros": 1_000_000, "outputPerMillionMicros": 2_000_000}
BODY = {"model": "chat-1", "messages": [{"role": "user", "content": "Hi"}]}
Script = Callable[[Reply, Received], Awaitable[None]]


class LlmGateway(Gateway):
    """The gateway with a language model at some providers, and its journal being written."""

    def __init__(self, *providers: LlmProvider, **settings: Any) -> None:
        super().__init__(**settings)
        names = [f"provider-{number}" for number, _ in enumerate(providers)]
        routes = [
            {"name": name, "providerName": name, "upstreamModel": "up-1", "priority": number}
            for number, name in enumerate(names)
        ]
        for name, provider in zip(names, providers, strict=True):
            self.put_provider(provider, name)
        self.put_model("chat-1", action="chat", routes=routes, prices=[PRICE])
        self.running = asyncio.create_task(self.calls.run())

    def put_provider(
        self,
        provider: LlmProvider,
        name: str = "provider-0",
        spec: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Declare a provider; `fields` are those of its API."""
        declared = {"type": "openai", "openai": {"baseUrl": f"{provider.url}/v1", **fields}}
        obj = {"metadata": {"name": name}, "spec": {**declared, **(spec or {})}}
        self.kube.put("gatewayproviders", obj)

    def give_credentials(self, provider: LlmProvider, *credentials: str) -> None:
        """Declare the first provider with these credentials."""
        self.put_provider(provider, spec={"credentialsSecretRef": {"name": "keys", "key": "token"}})
        self.kube.secrets["keys"] = {"token": "\n".join(credentials).encode()}

    async def leave_after(self, is_time: Callable[[bytes], object], **fields: Any) -> None:
        """A call whose client leaves when `is_time` of what it got."""
        answer = Answer()
        exchange = FakeExchange(answer)

        async def send(message: Any) -> None:
            answer.body += message.get("body", b"")

        async def leave() -> None:
            await wait_for(lambda: is_time(answer.body))
            exchange.leave()

        asking = self.ask_raw(exchange, send=send, **fields)
        await asyncio.wait_for(asyncio.gather(asking, leave()), 60)

    async def ask_raw(
        self, exchange: FakeExchange, receive: Any = None, send: Any = None, **fields: Any
    ) -> None:
        """A call by the parts of a server; `receive` sends the body at once, `send` refuses."""

        async def receive_body() -> dict[str, Any]:
            return {"type": "http.request", "body": orjson.dumps({**BODY, **fields})}

        async def refuse(message: Any) -> None:
            raise AssertionError(message)

        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        scope = {
            "type": "http",
            "method": "POST",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            EXCHANGE_KEY: exchange,
        }
        await self.app(scope, receive or receive_body, send or refuse)

    async def chat(
        self, *, key: str | None = None, headers: dict[str, str] | None = None, **fields: Any
    ) -> Answer:
        """A call of the chat API; `fields` of its body."""
        sent = list((headers or {}).items())
        return await self.create({**BODY, **fields}, path=CHAT, key=key, headers=sent)

    async def close(self) -> list[CallRecord]:
        """All records that the journal has at the end."""
        records = await self.close_journal()
        self.running.cancel()
        return records

    async def read_record(self) -> CallRecord:
        """The only record that the journal has at the end."""
        (record,) = await self.close()
        return record


@asynccontextmanager
async def _open(
    providers: list[LlmProvider], kind: type[LlmGateway], settings: dict[str, Any]
) -> AsyncIterator[tuple[Any, ...]]:
    async with AsyncExitStack() as stack:
        for provider in providers:
            await stack.enter_async_context(provider)
        gateway = kind(*providers, **settings)
        try:
            yield gateway, *providers
        finally:
            gateway.running.cancel()
            await gateway.api_parts.llm_providers.close()


def serve(*scripts: Script, kind: type[LlmGateway] = LlmGateway, **settings: Any) -> Any:
    """A gateway and its provider, which follows these scripts one call after the other."""
    return _open([LlmProvider(*scripts)], kind, settings)


def serve_each(*scripts: Script, kind: type[LlmGateway] = LlmGateway, **settings: Any) -> Any:
    """A gateway and a provider for each script; the first one is preferred."""
    return _open([LlmProvider(script) for script in scripts], kind, settings)


def shorten_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have providers that send nothing time out after 0.3 s; they declare whole seconds."""
    times = replace(Timeouts(), head=0.3, idle=0.3)
    monkeypatch.setattr("gateway_core.llm.upstream.Timeouts", lambda **_: times)


def read_frames(body: bytes) -> list[Any]:
    """The data of the frames of a stream."""
    frames = body.decode().strip().split("\n\n")
    assert all(frame.startswith("data: ") for frame in frames), frames
    return [frame[6:] if frame == "data: [DONE]" else orjson.loads(frame[6:]) for frame in frames]


async def answer(reply: Reply, _: Received) -> None:
    """Answer "Hello" for 20 micro-dollars."""
    await reply.whole(make_chat_answer())


def stream(*texts: str) -> Script:
    """A script that streams these texts."""

    async def script(reply: Reply, _: Received) -> None:
        await reply.begin()
        for frame in make_chat_chunks(*texts):
            await reply.chunk(frame)
        await reply.end()

    return script


def fail_with(status: int, message: str = "no", **options: Any) -> Script:
    """A script that answers with an error."""

    async def script(reply: Reply, _: Received) -> None:
        await reply.whole({"error": {"message": message}}, status, **options)

    return script


async def hang(_: Reply, __: Received) -> None:
    """Answer nothing."""
    await asyncio.Event().wait()


async def begin_and_hang(reply: Reply, _: Received) -> None:
    """Send the head of a stream alone."""
    await reply.begin()
    await asyncio.Event().wait()


async def say_hello(reply: Reply, _: Received) -> None:
    """Begin a stream that says "Hello" and go on with nothing."""
    await reply.begin()
    for frame in make_chat_chunks("Hello")[:2]:
        await reply.chunk(frame)


async def say_and_hang(reply: Reply, received: Received) -> None:
    """Begin a stream that says "Hello" and never ends."""
    await say_hello(reply, received)
    await asyncio.Event().wait()


async def break_off(reply: Reply, received: Received) -> None:
    """Begin a stream that says "Hello" and is cut."""
    await say_hello(reply, received)
    reply.cut()
