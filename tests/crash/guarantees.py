"""Models of three providers: what keeps a repeated submission from making two jobs differs."""

import asyncio
import time
from contextlib import suppress

from tests.servers.tenants import describe, describe_model
from tests.servers.world import wait_for

REQUEST_SECONDS = 2
UNDER_WAY_SECONDS = 5 + 10 + REQUEST_SECONDS + 10
"""How long a takeover without a key waits: an intent's freshness, turn, time-out and margin."""

KEY, LOOKUP, NONE = "by-key", "by-lookup", "by-nothing"
GUARANTEES = (KEY, LOOKUP, NONE)


async def make_models(world, client):
    """Applies a provider and a model for each guarantee, and waits until the API offers them.

    Their jobs are the simulated provider's; a model is named as its guarantee. A submission that
    takes longer than `REQUEST_SECONDS` has an unknown outcome.
    """
    base = world.read("gatewayprovider", "simulated")["spec"]
    service = world.env["GATEWAY_SERVICE"]
    objects = []
    for guarantee in GUARANTEES:
        http = {**base["http"], "requestTimeoutSeconds": REQUEST_SECONDS}
        if guarantee != KEY:
            http["submit"] = {**http["submit"]}
            del http["submit"]["idempotencyHeader"]
        if guarantee == NONE:
            del http["lookup"]
        routes = [{"name": "only", "providerName": guarantee, "upstreamModel": "q4"}]
        objects.append(describe("Provider", guarantee, {**base, "http": http}))
        objects.append(describe_model(world, guarantee, service=service, routes=routes))
    world.apply(*objects)

    async def offered():
        answers = [await client.create(model=name, duration_seconds=3) for name in GUARANTEES]
        return all(answer.status == 202 for answer in answers)

    await wait_for(offered, what="every model is offered")


class Load:
    """Creates tasks of every guarantee, one after the other, for as long as the block lasts."""

    def __init__(self, client, *, pause=0.2):
        self._client = client
        self._pause = pause
        self.made = {}
        """Task id to guarantee."""

    async def create(self, number):
        """One task; repeated until it is acknowledged."""
        guarantee = GUARANTEES[number % len(GUARANTEES)]
        task_id = await self._client.create_surely(
            f"load-{id(self)}-{number}",
            model=guarantee,
            duration_seconds=3,
        )
        self.made[task_id] = guarantee

    async def run(self, stop):
        """Creates until `stop` is set."""
        number, due = 0, time.monotonic()
        while not stop.is_set():
            await self.create(number)
            number, due = number + 1, due + self._pause
            await wait_or(stop, due - time.monotonic())

    def check_ends(self, ended):
        """Where jobs can be told apart every task completed, else its outcome may be unknown."""
        for task_id, guarantee in self.made.items():
            body = ended[task_id]
            unknown = guarantee == NONE and "unknown" in body.get("error", "")
            assert body["status"] == "completed" or unknown, (guarantee, body)


async def wait_or(stop, seconds):
    """Waits for `stop`, at most so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await stop.wait()
