"""API and operators are replaced one after the other, as rollouts do, while clients go on.

Clients come through a load balancer that works as a Service does, keep their connections, and see
no 5xx. What a create on a connection that was closed just then came to, they find out by its key.
"""

import asyncio
import collections
import json
import secrets
import time
from contextlib import ExitStack

import aiohttp
import pytest

from tests.crash.history import check_money, is_closed
from tests.faults.machine import Stopwatch
from tests.servers.proxy import Balancer
from tests.servers.replica import Replica
from tests.servers.world import TERMINAL, check_invariants, wait_for
from tests.shares import IS_WHOLE

pytestmark = [pytest.mark.timeout(420)]

LINGER_SECONDS, LAG_SECONDS = (6.0, 1.5) if IS_WHOLE else (3.0, 1.0)
CLIENTS = 6 if IS_WHOLE else 3
"""Fewer by default, as other tests share the machine."""
LATE = {
    f"{method} 503 Retry-After 1 The task {words}."
    for method in ("GET", "POST")
    for words in ("cannot be recorded now", "could not be recorded", "cannot be looked up now")
}
"""Responses while the record is slow because of other tests, with a rollout or without."""


@pytest.fixture(scope="module")
def world(unattended_world):
    """Its own API, if any client asks it, is behind no balancer."""
    return unattended_world


@pytest.fixture
async def client(world):
    async with world.client() as own:
        await own.simulate({"behaviour": "seconds", "seconds": "0.5-2"})
        yield own
        await own.simulate()


class Caller:
    """A client with one connection, which creates tasks and polls each to its end."""

    def __init__(self, client, base_url, seen):
        self._client = client
        self._base_url = base_url
        self._seen = seen
        self._session = None

    async def run(self, stop):
        """Task after task until `stop` is set."""
        connector = aiohttp.TCPConnector(limit=1)
        timeout = aiohttp.ClientTimeout(total=30)
        headers = {"Authorization": f"Bearer {self._client.key}"}
        async with aiohttp.ClientSession(
            self._base_url, connector=connector, timeout=timeout, headers=headers
        ) as self._session:
            while not stop.is_set():
                await self.run_task()

    async def run_task(self):
        """One task from its create to its end."""
        body, key = self._client.body(duration_seconds=3), secrets.token_hex(8)
        answer = None
        while answer is None or answer.get("id") is None:
            answer = await self.call("POST", self._client.tasks_path, body, key)
        task_id = answer["id"]
        self._client.history.accepted.append(task_id)
        while True:
            await asyncio.sleep(0.1)
            answer = await self.call("GET", f"{self._client.tasks_path}/{task_id}")
            if answer is None or "status" not in answer:
                continue
            self._client.history.polled.setdefault(task_id, []).append(answer)
            if answer["status"] in TERMINAL:
                return

    async def call(self, method, path, body=None, key=None):
        """The JSON of an answer, counted by its status; None where the connection broke."""
        headers = {"Idempotency-Key": key} if key else {}
        begun = time.monotonic()
        try:
            async with self._session.request(method, path, json=body, headers=headers) as answer:
                content = await answer.json(content_type=None)
        except (aiohttp.ClientError, OSError, json.JSONDecodeError) as error:
            self._seen[f"{method} {type(error).__name__}"] += 1
            return None
        self._seen["slowest"] = max(self._seen["slowest"], time.monotonic() - begun)
        if answer.status in (200, 202):
            self._seen[f"{method} {answer.status}"] += 1
            return content
        wait, told = answer.headers.get("Retry-After"), (content or {}).get("error")
        self._seen[f"{method} {answer.status} Retry-After {wait} {told}"] += 1
        await asyncio.sleep(0.2)
        return content


def start_api(world, balancer):
    api = Replica(world, "api", GATEWAY_LINGER_SECONDS=str(LINGER_SECONDS))
    api.start()
    balancer.add(api.port)
    return api


def start_operator(world, ordinal):
    env = {"GATEWAY_REPLICAS": "2", "GATEWAY_ORDINAL": str(ordinal)}
    operator = Replica(world, "operator", **env)
    operator.start()
    return operator


async def is_serving(balancer, api):
    await wait_for(lambda: balancer.is_serving(api.port), seconds=60, what=f"{api.name} serving")


async def replace_api(world, balancer, old):
    """A rollout's step: the new one gets ready, the old one is asked to end and does."""
    new = start_api(world, balancer)
    await is_serving(balancer, new)
    begun = time.monotonic()
    old.terminate()
    assert await asyncio.to_thread(old.wait_ended) == 0
    took = time.monotonic() - begun
    assert took >= LINGER_SECONDS, "it goes on until every node has heard"
    assert took < LINGER_SECONDS + 15
    return new


async def replace_operator(world, old, ordinal):
    """As a StatefulSet does it: first the end, then the successor."""
    old.terminate()
    assert await asyncio.to_thread(old.wait_ended) == 0
    new = start_operator(world, ordinal)
    await asyncio.to_thread(new.wait_ready)
    return new


async def run_while_called(client, base_url, work):
    """The counts of what clients were answered while `work` went on."""
    seen, stop = collections.Counter(), asyncio.Event()
    callers = [
        asyncio.create_task(Caller(client, base_url, seen).run(stop)) for _ in range(CLIENTS)
    ]
    try:
        await asyncio.sleep(1)
        await work()
        await asyncio.sleep(1)
    finally:
        stop.set()
    await asyncio.gather(*callers)
    print(dict(seen))
    return seen


def split(seen):
    """What was counted: answers that were none of 200 and 202, and connections that broke."""
    odd = {name: n for name, n in seen.items() if not name.endswith((" 200", " 202"))}
    odd.pop("slowest", None)
    broken = {name: n for name, n in odd.items() if name.endswith("Error")}
    return {name: n for name, n in odd.items() if name not in broken}, broken


async def test_rolling_restart_loses_nothing_and_answers_no_5xx(world, client, tally):
    told = tally("F22", "API and operators replaced one by one while clients call")
    with Balancer(lag=LAG_SECONDS) as balancer, ExitStack() as ends:
        apis = [start_api(world, balancer) for _ in range(2)]
        operators = [start_operator(world, ordinal) for ordinal in range(2)]
        for api in apis:
            await is_serving(balancer, api)
        for operator in operators:
            await asyncio.to_thread(operator.wait_ready)

        async def roll():
            for place in range(2):
                apis[place] = await replace_api(world, balancer, apis[place])
            for ordinal in (1, 0):  # as a StatefulSet does, from the last to the first
                operators[ordinal] = await replace_operator(world, operators[ordinal], ordinal)

        with Stopwatch() as timed:
            seen = await run_while_called(client, balancer.base_url, roll)
        for process in (*apis, *operators):
            ends.push(process.__exit__)
        async with told.trial(client):
            ended = await client.wait_terminal(client.history.accepted, seconds=120)
            await check_invariants(client, jobs="exactly one")
            await wait_for(lambda: is_closed(world, client), what="all finalizers gone", seconds=60)
            await check_money(world, client, told)
            odd, broken = split(seen)
            assert set(odd) <= (set() if timed.is_idle else LATE), odd
            told.not_judged += bool(odd)
            # no longer than a stall: a rollout that refuses does so for seconds
            assert sum(odd.values()) <= 2 * CLIENTS, odd
            # a connection may be closed just as a request is sent on it; hardly any are
            assert sum(broken.values()) <= 2, broken
            assert balancer.refused == 0
            assert len(ended) > CLIENTS
            assert {body["status"] for body in ended.values()} == {"completed"}
    told.check()
