"""1,000 clients that leave at any moment of a call: nothing stays open, all sums agree (F23)."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.crash.history import open_counters
from tests.faults.machine import Stopwatch
from tests.integration.llm.models import PRICE, encode_request, serve_model
from tests.servers.llm_provider import (
    LlmProvider,
    Received,
    Reply,
    make_chat_answer,
    make_chat_chunks,
)
from tests.servers.tenants import make_key, open_tenant
from tests.servers.world import Client, World, wait_for
from tests.shares import share

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

CLIENTS = 1_000
AT_ONCE = 40
WORDS = 20
PAUSE_SECONDS = 0.02
LONGEST_SECONDS = 0.6
"""A client leaves at any moment before this; a call takes about 0.5 s."""
WHOLE_SHARE = 0.25
"""Of the clients that want a whole answer instead of a stream."""
CUT_SHARE = 0.1
"""Of the clients that leave before their request is sent whole."""
FUNDS = 100_000_000
STAYING = 10
"""Every so many clients one leaves after the end of its answer, however slow the machine is."""
REACHING = 2
"""Every so many clients one leaves after its call has reached the provider."""
CLOSED_SECONDS = 1.0
"""From a disconnect to the end of the upstream connection (contract §7.4)."""


class SlowProvider(LlmProvider):
    """Answers each call after a while and bit by bit; notes when it is done with it."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.chance = random.Random(13)
        self.begun = set[str]()
        """Prompts of the calls that have come."""
        self.ended: dict[str, float] = {}
        """The loop's time of the end of each call's answer, by its prompt."""
        self.answering = 0

    async def _reply(self, reply: Reply, received: Received) -> None:
        with self._note(received.body["messages"][0]["content"]):
            await asyncio.sleep(self.chance.random() / 20)
            if not received.body.get("stream"):
                await asyncio.sleep(WORDS * PAUSE_SECONDS)
                await reply.whole(make_chat_answer())
                return
            await reply.begin()
            for frame in make_chat_chunks(*["word"] * WORDS):
                await reply.chunk(frame)
                await asyncio.sleep(self.chance.random() * 2 * PAUSE_SECONDS)
            await reply.end()

    @contextmanager
    def _note(self, prompt: str) -> Iterator[None]:
        self.begun.add(prompt)
        self.answering += 1
        try:
            yield
        finally:
            self.answering -= 1
            self.ended[prompt] = asyncio.get_running_loop().time()


async def test_clients_that_leave_at_any_moment_leave_nothing_open(world, tally) -> None:
    """Each call is charged once, and neither a reservation nor an upstream connection stays."""
    counted = tally("F23", "clients of LLM calls leave at any moment")
    count = share(CLIENTS)
    async with (
        open_tenant(world, requestsPerMinute=1_000_000) as client,
        SlowProvider() as provider,
    ):
        model = await serve_model(world, client, provider)
        warm = len(provider.received)
        async with counted.trial(client, count=count):
            with Stopwatch() as timed:
                left = await call_and_leave(world, client, model, count, provider)
                await wait_for(lambda: provider.answering == 0, what="the end of every answer")
            late = [
                provider.ended[name] - at for name, at in left.items() if name in provider.ended
            ]
            counted.judge(
                "upstream closed after s", timed, at_most=CLOSED_SECONDS, seconds=max(late)
            )
            seen = len(provider.received) - warm
            # some leave before the provider has their call, and some after its end
            assert count / REACHING <= seen <= count, (
                f"the provider has seen {seen} of {count} calls"
            )
            assert min(late) < 0 < max(late)
            await check_sums(world, client, len(provider.received), count + warm)
    counted.check()


async def call_and_leave(
    world: World, client: Client, model: str, count: int, provider: SlowProvider
) -> dict[str, float]:
    """Sends calls, each of which is left at some moment; the loop's times, by prompt."""
    address = urlsplit(world.env["GATEWAY_BASE_URL"])
    slots, loop = asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop()
    chance, left = provider.chance, dict[str, float]()

    async def call(number: int) -> None:
        prompt, stays = f"call {number}", number % STAYING == 0
        reaches = number % REACHING == 0
        body = {"model": model, "messages": [{"role": "user", "content": prompt}]}
        request = encode_request(client.key, {**body, "stream": chance.random() > WHOLE_SHARE})
        if chance.random() < CUT_SHARE * REACHING and not reaches:
            request = request[: chance.randrange(1, len(request))]
        async with slots:
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(request)
            if stays:
                await wait_for(lambda: prompt in provider.ended, what=f"the end of {prompt}")
            else:
                if reaches:
                    await wait_for(lambda: prompt in provider.begun, what=f"the start of {prompt}")
                await read_for(reader, chance.random() * LONGEST_SECONDS)
            left[prompt] = loop.time()
            writer.transport.abort()

    await asyncio.gather(*(call(number) for number in range(count)))
    return left


async def read_for(reader: asyncio.StreamReader, seconds: float) -> None:
    """Reads an answer for at most so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await reader.read(4096):
                pass


async def check_sums(world: World, client: Client, seen: int, most: int) -> None:
    """Of the account: no reservation, and a balance that agrees with the usage of all calls."""
    manager = make_key(world, client.account, "Management").plaintext

    async def is_counted() -> dict[str, Any] | None:
        path = "/api/v1/management/usage?group_by=model"
        answer = await client.request("GET", path, key=manager)
        (row,) = (answer.body or {}).get("data") or [{}]
        return row if row.get("requests", 0) >= seen else None

    async with open_counters(world) as counters:

        async def has_no_holds() -> bool:
            return not await counters.list_holds(client.account, 0)

        await wait_for(has_no_holds, what="the end of every reservation")
    row = await wait_for(is_counted, what="the usage of each call", seconds=60)
    # a call may be left between its admission and its provider
    assert row["requests"] <= most
    dearest = row["input_tokens"] * PRICE["inputPerMillionMicros"]
    dearest += row["output_tokens"] * PRICE["outputPerMillionMicros"]
    # each call is rounded up
    assert dearest / 1e6 <= row["cost_micros"] <= dearest / 1e6 + row["requests"], row
    balance = (await client.request("GET", "/api/v1/me/balance")).body
    assert balance["balance_cents"] == (FUNDS - row["cost_micros"]) // 10_000
    charged = balance["spent_cents_total"] * 10_000
    assert abs(charged - row["cost_micros"]) < 10_000, (balance, row)
