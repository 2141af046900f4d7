"""Providers that fail in turn, each the whole time in one way: clients notice nothing (F6).

At most one provider fails at a time, so each call has a provider that can answer it.
"""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from gateway_core.llm.routing import WINDOW_CALLS
from tests.integration.llm.models import PRICE, reply_chat
from tests.servers.llm_provider import LlmProvider, Received, Reply
from tests.servers.tenants import describe, make_key, open_tenant, unique
from tests.servers.world import Answer, Client, World, wait_for
from tests.shares import share
from tests.tallies import Tally

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]

PHASES = 250
CLIENTS = 8
CALLS = 60
"""Calls that are answered while a provider fails."""
FAULTS = ("refused", "reset", "error", "limited", "silent")
RETRY_SECONDS = 1
SILENT_SECONDS = 3
MOST_ATTEMPTS = WINDOW_CALLS // 2 + CLIENTS + 8
"""Calls that reach a failing provider: half the breaker's window of failures open it, while others
are under way; then come probes, whose pauses double."""
FUNDS = 100_000_000
CHAT = "/v1/chat/completions"


class FlappingProvider(LlmProvider):
    """Answers calls, or fails in one of FAULTS before the head of its response."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.fault = ""
        self.answered = 0
        """Calls since it works again and has the time that it has asked for."""
        self.failed = 0
        self.limited_until = 0.0
        """Until when, by the loop's clock, it has asked for no calls."""
        # keeps the port while nothing listens there, so that connections to it are refused
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._place.bind(("127.0.0.1", 0))
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Where it listens, if it does."""
        return f"http://127.0.0.1:{self._place.getsockname()[1]}"

    async def __aenter__(self) -> "FlappingProvider":
        port = self._place.getsockname()[1]
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", port, reuse_port=True, backlog=1024
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        for writer in self._writers:
            writer.transport.abort()

    async def begin(self, fault: str) -> None:
        """Fail from now on."""
        self.fault, self.failed = fault, 0
        if fault == "refused":
            await self.__aexit__()

    async def recover(self) -> None:
        """Answer from now on."""
        if self.fault == "refused":
            await self.__aenter__()
        self.fault, self.answered = "", 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await super()._serve(reader, writer)
        finally:
            self._writers.discard(writer)

    async def _reply(self, reply: Reply, received: Received) -> None:
        # thousands of them
        self.received.clear()
        self.failed += bool(self.fault)
        match self.fault:
            case "":
                self.answered += asyncio.get_running_loop().time() > self.limited_until
                await reply_chat(reply, received)
            case "error":
                await reply.whole({"error": {"message": "down"}}, 500)
            case "limited":
                self.limited_until = asyncio.get_running_loop().time() + RETRY_SECONDS
                await reply.whole({}, 429, retry_after=str(RETRY_SECONDS))
            case "silent":
                # until the gateway gives up
                await asyncio.Event().wait()
            case _:
                reply.cut()


class Load:
    """Clients that call both models, one call after the other, and check each answer."""

    def __init__(self, client: Client, models: list[str], seed: int) -> None:
        self._client = client
        self._models = models
        self._chance = random.Random(seed)
        self._calls: Counter[bool] = Counter()
        """Answered calls, by whether they streamed."""
        self._under_way: dict[int, int] = {}
        """By client, the number of its call."""
        self._clients: list[asyncio.Task[None]] = []
        self._is_ending = False

    @property
    def count(self) -> int:
        """Answered calls."""
        return self._calls.total()

    @property
    def micros(self) -> int:
        """What they cost: 10 tokens of input, and 5 of output, or 2 of a stream."""
        return 20 * self._calls[False] + 14 * self._calls[True]

    def begin(self) -> None:
        """Begin to call."""
        self._clients = [asyncio.create_task(self._run(number)) for number in range(CLIENTS)]

    async def end(self) -> None:
        """End with the calls under way."""
        self._is_ending = True
        await asyncio.gather(*self._clients, return_exceptions=True)
        self.check()

    def check(self) -> None:
        """Raise what a client has found."""
        for client in self._clients:
            if client.done():
                client.result()

    async def wait(self, condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
        """Wait while the clients call."""

        def look() -> bool:
            self.check()
            return condition()

        await wait_for(look, what=what, seconds=seconds)

    async def wait_ended(self) -> None:
        """Wait until all calls that are under way now have ended."""
        now = dict(self._under_way)
        await self.wait(
            lambda: all(self._under_way[client] != call for client, call in now.items()),
            "the end of calls that began before",
        )

    async def call(self, model: str, *, stream: bool) -> Answer:
        """Make one call; checks its answer if it succeeds."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
        found = await self._client.request("POST", CHAT, body=body)
        if found.status != 200:
            return found
        self._calls[stream] += 1
        if stream:
            assert found.raw.endswith(b"data: [DONE]\n\n"), found.raw
            assert found.raw.count(b'"error"') == 0, found.raw
        else:
            assert found.body["choices"][0]["message"]["content"] == "Hello"
        return found

    async def _run(self, number: int) -> None:
        for call, model in enumerate(cycle(self._models)):
            self._under_way[number] = call
            if self._is_ending:
                return
            found = await self.call(model, stream=self._chance.random() < 0.5)
            assert found.status == 200, f"{found.raw!r} though a provider could answer"


async def serve_models(world: World, load_of: Callable[[list[str]], Load], urls: list[str]) -> Load:
    """Two models at the same providers: one prefers the first, one divides its calls."""
    names = [unique("flapping") for _ in urls]
    preferring, dividing = unique("preferring"), unique("dividing")
    for name, url in zip(names, urls, strict=True):
        declared = {"baseUrl": f"{url}/v1", "idleTimeoutSeconds": SILENT_SECONDS}
        world.apply(describe("Provider", name, {"type": "openai", "openai": declared}))
    for model, priorities in ((preferring, (0, 1)), (dividing, (0, 0))):
        routes = [
            {"name": name, "providerName": name, "upstreamModel": "up-1", "priority": priority}
            for name, priority in zip(names, priorities, strict=True)
        ]
        spec = {"modelId": model, "service": model, "action": "chat", "routes": routes}
        world.apply(describe("Model", model, {**spec, "prices": [PRICE]}))
    load = load_of([preferring, dividing])

    async def are_served() -> bool:
        found = [await load.call(model, stream=False) for model in (preferring, dividing)]
        return {answer.status for answer in found} == {200}

    await wait_for(are_served, what="the models")
    return load


async def flap(
    tally: Tally, load: Load, broken: FlappingProvider, fault: str, *, until_used: bool
) -> None:
    """One trial: a provider fails, its clients are spared, and it answers again once it can.

    Unless `until_used`, the next one may fail before this one's circuit has closed.
    """
    await load.wait_ended()
    loop = asyncio.get_running_loop()
    began, answered = loop.time(), load.count
    await broken.begin(fault)
    await load.wait(lambda: load.count >= answered + CALLS, f"calls beside one {fault}")
    seconds = loop.time() - began
    # each end of a rest lets the calls of one moment pass
    most = MOST_ATTEMPTS if fault != "limited" else CLIENTS * (2 + seconds / RETRY_SECONDS)
    tally.note("attempts at a failing provider", broken.failed)
    assert broken.failed <= most, f"{broken.failed} calls in {seconds:.1f} s met one {fault}"
    began = loop.time()
    await broken.recover()
    # a provider that has asked for time is given it
    if not until_used and fault != "limited":
        return
    await load.wait_ended()
    await load.wait(lambda: broken.answered >= 1, f"calls of a provider that was {fault}")
    tally.note("used again after s", loop.time() - began)


async def test_clients_notice_no_provider_that_flaps(world, tally) -> None:
    counted = tally("F6", "LLM provider flaps beside another")
    chance = random.Random(6)
    async with (
        open_tenant(world, requestsPerMinute=1_000_000) as client,
        FlappingProvider() as first,
        FlappingProvider() as second,
    ):
        models: list[str] = []

        def make_load(found: list[str]) -> Load:
            models.extend(found)
            return Load(client, found, seed=6)

        load = await serve_models(world, make_load, [first.url, second.url])
        load.begin()
        phases: list[tuple[FlappingProvider, str]] = []
        try:
            for _ in range(share(PHASES)):
                if not phases:
                    phases = [(each, fault) for each in (first, second) for fault in FAULTS]
                    chance.shuffle(phases)
                async with counted.trial(client):
                    await flap(counted, load, *phases.pop(), until_used=chance.random() < 0.5)
        finally:
            await load.end()
        await check_sums(world, client, models, load)
        await check_health(world, models)
    counted.check()


async def check_sums(world: World, client: Client, models: list[str], load: Load) -> None:
    """Each call is counted and charged once, by the answer that its client got."""
    manager = make_key(world, client.account, "Management").plaintext
    path = "/api/v1/management/usage?group_by=model"

    async def read_rows() -> list[dict[str, Any]] | None:
        found = (await client.request("GET", path, key=manager)).body.get("data") or []
        return found if sum(row["requests"] for row in found) >= load.count else None

    rows = await wait_for(read_rows, what="the usage of each call", seconds=60)
    assert sum(row["requests"] for row in rows) == load.count
    assert sum(row["cost_micros"] for row in rows) == load.micros
    balance = (await client.request("GET", "/api/v1/me/balance")).body
    assert balance["balance_cents"] == (FUNDS - load.micros) // 10_000


async def check_health(world: World, models: list[str]) -> None:
    """`kubectl get` shows errors of the providers, and none of the models."""
    model = world.read("gatewaymodel", models[0])
    names = [route["providerName"] for route in model["spec"]["routes"]]

    async with world.kube() as kube:

        async def read(plural: str, name: str) -> dict[str, Any]:
            found = (await kube.get(plural, name)).get("status", {}).get("health")
            return found or {}

        async def is_shown() -> bool:
            errors = [(await read("gatewayproviders", name)).get("errorPercent") for name in names]
            return all(errors) and (await read("gatewaymodels", models[0])).get("errorPercent") == 0

        await wait_for(is_shown, what="the health of providers and models", seconds=90)
        shown = await read("gatewaymodels", models[0])
        assert shown["state"] == "Healthy"
        assert shown["latencyMillis"] > 0
        assert shown["firstTokenMillis"] > 0
