"""Another account's id and one that stands for nothing take the same time to refuse.

Requests for both are sent in turn over one connection, and the two samples are compared by the
distance of Kolmogorov and Smirnov: the largest difference of their cumulative distributions.
"""

import asyncio
import base64
import bisect
import json
import math
import random
import secrets
import statistics
import time

import openai
import pytest

from tests.servers.replica import Replica
from tests.servers.tenants import describe_task, make_key, unique, wait_status
from tests.shares import IS_WHOLE

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

REQUESTS = 2000 if IS_WHOLE else 200
"""For each of the two."""
MOST_DISTANCE = 0.1
"""Of the two distributions. Whoever guesses by the better threshold is right in 55 % of cases."""
CHANCE_DISTANCE = 1.95 * math.sqrt(2 / REQUESTS)
"""Two samples of one distribution are further apart in one of 1,000 cases."""
IDS = 8
"""Ids of each kind, asked for in turn."""
MANAGEMENT = "/api/v1/management"


@pytest.fixture(scope="module")
def replica(world):
    """An API process that refuses nobody for the number of calls."""
    with Replica(world, "api", GATEWAY_MANAGEMENT_CALLS_PER_MINUTE="1000000") as running:
        yield running


class Owner:
    """Another account. Each function makes an object of it and gives the id."""

    def __init__(self, world, client, governor, sdk):
        self._world = world
        self._client = client
        self._governor = governor
        self._sdk = sdk

    async def task(self):
        return (await self._client.create(duration_seconds=3)).body["id"]

    async def named_task(self):
        name = unique("task-named")
        self._world.apply(describe_task(self._client, name), command="create")
        task = name.replace("-", "_", 1)
        await wait_status(self._client, 200, f"{self._client.tasks_path}/{task}")
        return task

    async def file(self):
        return (await self._sdk.files.create(file=("a", b"x"), purpose="user_data")).id

    async def upload(self):
        made = await self._sdk.uploads.create(
            bytes=10, filename="a", mime_type="text/plain", purpose="user_data"
        )
        return made.id

    async def batch(self):
        body = {"model": "sim-moderation", "input": "a"}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/moderations", "body": body}
        file = await self._sdk.files.create(
            file=("a.jsonl", json.dumps(line).encode()), purpose="batch"
        )
        made = await self._sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/moderations", completion_window="24h"
        )
        return made.id

    async def key(self):
        return await self._make("keys")

    async def named_key(self):
        return make_key(self._world, self._client.account).name.replace("-", "_", 1)

    async def guardrail(self):
        return await self._make("guardrails")

    async def _make(self, path):
        answer = await self._governor.request(
            "POST", f"{MANAGEMENT}/{path}", body={"name": unique("one")}
        )
        assert answer.status == 201, answer.raw
        return answer.body["id"]


ENDPOINTS = {
    "task": ("GET", "{tasks}/{id}"),
    "named_task": ("GET", "{tasks}/{id}"),
    "file": ("GET", "/v1/files/{id}"),
    "upload": ("POST", "/v1/uploads/{id}/cancel"),
    "batch": ("GET", "/v1/batches/{id}"),
    "key": ("GET", MANAGEMENT + "/keys/{id}"),
    "named_key": ("GET", MANAGEMENT + "/keys/{id}"),
    "guardrail": ("GET", MANAGEMENT + "/guardrails/{id}"),
}


def guess(foreign: str, kind: str) -> str:
    """An id of the same shape as a foreign one, which stands for nothing."""
    if kind.startswith("named"):
        end = foreign.rpartition("-")[2] if "-" in foreign else foreign.partition("_")[2]
        return foreign.removesuffix(end) + secrets.token_hex(len(end))[: len(end)]
    digits = base64.b32encode(secrets.token_bytes(17))[:26].decode().lower()
    return foreign[:-26] + digits


def find_distance(one: list[float], other: list[float]) -> float:
    """The distance of Kolmogorov and Smirnov of two samples, 0 to 1."""
    one, other = sorted(one), sorted(other)
    return max(
        abs(bisect.bisect_right(one, x) / len(one) - bisect.bisect_right(other, x) / len(other))
        for x in (*one, *other)
    )


async def sample(port, heads):
    """Seconds of each answer to foreign and unknown ids, sent in turn; all answers are one.

    `heads` has whole requests: pairs of a foreign and an unknown id.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = ([], [])
    answers = set()
    warm_up = 20
    try:
        for number in range(-warm_up, REQUESTS):
            pair = heads[number % len(heads)]
            # what comes first may find the process in another state than what comes second
            for which in random.sample((0, 1), 2):
                began = time.perf_counter()
                writer.write(pair[which])
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                body = await reader.readexactly(int(length))
                if number >= 0:
                    taken[which].append(time.perf_counter() - began)
                answers.add((head.split()[1], body if b"req_" not in body else b""))
    finally:
        writer.transport.abort()
    return taken, answers


@pytest.mark.parametrize("kind", ENDPOINTS)
async def test_foreign_and_unknown_ids_take_the_same_time(world, replica, client, other, kind):
    method, template = ENDPOINTS[kind]
    managers = [make_key(world, each.account, "Management").plaintext for each in (client, other)]
    path = f"{MANAGEMENT}/keys"
    base = world.env["GATEWAY_BASE_URL"] + "/v1"
    async with (
        world.client(managers[1], other.account) as governor,
        openai.AsyncOpenAI(api_key=other.key, base_url=base) as sdk,
    ):
        await wait_status(governor, 200, path)
        owner = Owner(world, other, governor, sdk)
        foreign = [await getattr(owner, kind)() for _ in range(IDS)]
    await wait_status(client, 200, base=replica.base_url)
    await wait_status(client, 200, path, key=managers[0], base=replica.base_url)
    asker = managers[0] if MANAGEMENT in template else client.key
    heads = [
        [
            f"{method} {template.format(tasks=client.tasks_path, id=each)} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {asker}\r\nContent-Length: 0\r\n\r\n".encode()
            for each in (one, guess(one, kind))
        ]
        for one in foreign
    ]
    bound = max(MOST_DISTANCE, CHANCE_DISTANCE)
    # a single noisy run of a machine is no finding
    for run in (1, 2):
        (taken, answers) = await sample(replica.port, heads)
        distance = find_distance(*taken)
        medians = [1e6 * statistics.median(each) for each in taken]
        print(
            f"{kind}: {REQUESTS} requests each, distance {distance:.3f} of at most {bound:.3f},"
            f" medians {medians[0]:.0f} µs foreign and {medians[1]:.0f} µs unknown"
        )
        assert {status for status, _ in answers} == {b"404"}
        if distance <= bound:
            return
        assert run == 1, f"distance {distance:.3f} twice, medians {medians} µs"


def test_samples_that_differ_by_a_tenth_are_distinguished():
    draw = random.Random(1)
    one = [draw.gauss(1000, 50) for _ in range(2000)]
    same = [draw.gauss(1000, 50) for _ in range(2000)]
    slower = [draw.gauss(1100, 50) for _ in range(2000)]
    assert find_distance(one, same) < MOST_DISTANCE
    assert find_distance(one, slower) > MOST_DISTANCE
