"""Calls in any dialect to a provider whose response the number in the prompt decides."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from gateway_core.billing.journal import CallRecord
from gateway_core.llm.formats.calls import Format
from tests.fakes.llm_cases import TEXTS, Case
from tests.servers.llm_provider import LlmProvider, Received, Reply
from tests.servers.world import wait_for
from tests.unit.apiserver.gateway import Answer, call
from tests.unit.apiserver.llm_gateway import PRICE, LlmGateway

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
TEXT = "".join(TEXTS)
WHOLE = 1_000_000
"""The number of a call that gets the whole response."""

Send = Callable[[Reply, int], Awaitable[None]]


def encode(case: Case, *, chunked: bool = True) -> bytes:
    """The provider's response: two frames in each chunk, or all until the connection's end."""
    if not chunked:
        return HEAD + b"\r\n" + case.wire
    frames = re.findall(rb"(?s).+?(?:\r?\n){2}", case.wire)
    pairs = [b"".join(frames[start : start + 2]) for start in range(0, len(frames), 2)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(pair), pair) for pair in [*pairs, b""])
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks


class Harness:
    """A gateway with one provider, to which the prompt of a call says what to send."""

    def __init__(self, case: Case, provider: LlmProvider) -> None:
        self._case = case
        self._provider = provider
        self.gateway = LlmGateway(provider)
        kind = "google" if case.upstream is Format.GOOGLE else "openai"
        declared: dict[str, Any] = {"baseUrl": f"{provider.url}/v1"}
        if case.upstream is Format.RESPONSES:
            declared["hasResponses"] = True
        spec = {"type": kind, kind: declared}
        self.gateway.kube.put(
            "gatewayproviders", {"metadata": {"name": "provider-0"}, "spec": spec}
        )
        routes = [{"name": "a", "providerName": "provider-0", "upstreamModel": "up-1"}]
        self.gateway.put_model("m", action="chat", routes=routes, prices=[PRICE])
        for account in ("demo", "guest"):
            self.gateway.put_account(account, unlimited=True, requestsPerMinute=1_000_000)

    async def ask(self, number: int, key: str | None = None) -> Answer:
        """The answer to the call of that number."""
        path, query = self._case.target
        headers = [
            ("Authorization", f"Bearer {key or self.gateway.key}"),
            ("Content-Type", "application/json"),
        ]
        content = orjson.dumps(self._case.body).replace(b'"hi"', b'"%d"' % number)
        asking = call(self.gateway.app, "POST", path, headers=headers, content=content, query=query)
        return await asyncio.wait_for(asking, 20)

    async def ask_all(self, numbers: Iterable[int], at_once: int = 8) -> dict[int, Answer]:
        """The answers by number; a whole one of another account keeps the circuit closed."""
        slots, answers = asyncio.Semaphore(at_once), dict[int, Answer]()

        async def ask(number: int) -> None:
            async with slots:
                answers[number] = await self.ask(number)

        whole = await self.ask(WHOLE, self.gateway.other_key)
        assert (self._case.read(whole.body).text, whole.status) == (TEXT, 200)
        await asyncio.gather(*map(ask, numbers))
        return answers

    async def end(self) -> list[CallRecord]:
        """The records of the asking account, once nothing is held or open."""

        async def is_settled() -> bool:
            return await self.gateway.held() == 0

        await wait_for(is_settled, what="the end of all reservations")
        await self.gateway.api_parts.llm_providers.close()
        await wait_for(lambda: self._provider.open_connections == 0, what="closed connections")
        records = [record for record in await self.gateway.close() if record.account == "demo"]
        return sorted(records, key=lambda record: int(record.call.rpartition("-")[2]))


@asynccontextmanager
async def serve(case: Case, send: Send) -> AsyncIterator[Harness]:
    """A harness whose provider does `send` for each number."""

    async def script(reply: Reply, received: Received) -> None:
        [number] = re.findall(rb'"(\d+)"', orjson.dumps(received.body))
        if int(number) == WHOLE:
            await reply.raw(encode(case))
        else:
            await send(reply, int(number))

    async with LlmProvider(script) as provider:
        harness = Harness(case, provider)
        try:
            yield harness
        finally:
            harness.gateway.running.cancel()
