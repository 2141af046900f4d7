"""100 receivers of one account, 10 of them dead, slow or hostile: 90 feel nothing of it.

Measured twice, first with all of them well, so that what the machine takes shows.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tests.bench.harness import ACCOUNT
from tests.bench.report import Report
from tests.servers.receivers import Receiver, answer, cut, hang, trickle
from tests.servers.world import Client, World, list_tasks

RECEIVERS = 100
BAD = 10
TASKS = 300
DURATION = "5-35"
BAR_SECONDS = 2.0


async def measure_callbacks(world: World, key: str, report: Report) -> None:
    """From the terminal state to the arrival, at each well receiver; bad ones get as many tasks."""
    webhook = {"webhookSecretRef": {"name": "demo-webhook", "key": "secret"}}
    world.patch("gatewayaccount", ACCOUNT, webhook)
    async with world.client(key) as client:
        await client.simulate({"behaviour": "seconds", "seconds": DURATION})
        await _measure(client, 0, "all 100 well", report)
        await _measure(client, BAD, "90 well of 100", report, at_most=BAR_SECONDS)


async def _measure(client: Client, bad: int, name: str, report: Report, **bar: float) -> None:
    async with Receiver(host="0.0.0.0") as receiver:
        urls = _set_up(receiver, bad)
        told = [urls[number % RECEIVERS] for number in range(TASKS)]
        random.Random(7).shuffle(told)
        gate = asyncio.Semaphore(16)

        async def create(url: str) -> str:
            async with gate:
                answered = await client.create(callback_url=url, duration_seconds=3)
                assert answered.status == 202, answered.raw
                return str(answered.body["id"])

        tasks = await asyncio.gather(*(create(url) for url in told))
        well = {task for task, url in zip(tasks, told, strict=True) if "/well-" in url}
        arrived = await _wait_for_all(receiver, well)
        objects = await asyncio.to_thread(list_tasks, client.world)
    # the record has the end in whole seconds, rounded down: what is shown is up to one too long
    waits = sorted(at - _end_of(objects[task]) for task, at in arrived.items())
    report.add(f"callbacks, {name}: delivered", len(waits), "tasks", at_least=len(well))
    report.add(f"callbacks, {name}: after the end, p50", waits[len(waits) // 2], "s")
    report.add(f"callbacks, {name}: after the end, p99", waits[int(len(waits) * 0.99)], "s", **bar)


def _set_up(receiver: Receiver, bad: int) -> Sequence[str]:
    """The receivers' addresses, each of another host; the first `bad` of them misbehave."""
    behaviours = (hang, trickle, cut, receiver.flood, answer(500))
    urls = []
    for number in range(RECEIVERS):
        host = f"127.100.0.{number + 1}"
        path = f"well-{number}" if number >= bad else f"bad-{number}"
        urls.append(receiver.locate(path, host=host))
        if number < bad:
            receiver.always(path, behaviours[number % len(behaviours)])
    if bad:
        urls[0] = "http://127.100.0.1:9/"  # where nobody listens
    return urls


async def _wait_for_all(receiver: Receiver, tasks: set[str]) -> dict[str, float]:
    """When each task's first callback arrived, by the wall's clock."""
    arrived = dict[str, float]()
    seen, deadline = 0, time.time() + 180
    while len(arrived) < len(tasks) and time.time() < deadline:
        await asyncio.sleep(0.2)
        for arrival in receiver.arrivals[seen:]:
            seen += 1
            if arrival.json["id"] in tasks:
                arrived.setdefault(arrival.json["id"], arrival.at)
    return arrived


def _end_of(obj: Any) -> float:
    finished = next(c for c in obj["status"]["conditions"] if c["type"] == "Finished")
    return datetime.fromisoformat(finished["lastTransitionTime"]).timestamp()
